import logging
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.deadlines import TEST_S
from tests.waiting import Logged
from torchloom_core.live.transport.broker import EmbeddedBroker

# How fast the machine is decides no test.
settings.register_profile(
    "torchloom", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
# `make test` tries some new examples each time, `make coverage` a hundred of each test.
settings.register_profile("some", settings.get_profile("torchloom"), max_examples=20)
settings.register_profile("quick", settings.get_profile("torchloom"), max_examples=10)
settings.load_profile("torchloom")
os.environ.setdefault("PYTEST_TIMEOUT", f"{TEST_S:g}")

# `nohup` and a shell's `&` have signals ignored; what the tests start is not to inherit that.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

_STARTS = {"os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen"}
_BY_LIBRARIES = {"lscpu", "uname"}  # once, to count the cores
_started = []
_SERVERS = {"broker", "own_server"}


def _note_start(event, arguments):
    if event in _STARTS and not (arguments and arguments[0] in _BY_LIBRARIES):
        _started.append(arguments)


sys.addaudithook(_note_start)


def pytest_ignore_collect(collection_path, config):
    """With ``-m gpu`` import no other tests, whose packages a host with a GPU may lack."""
    if config.option.markexpr != "gpu":
        return None
    is_folder = collection_path.is_dir()
    files = collection_path.rglob("test_*.py") if is_folder else [collection_path]
    return not any("mark.gpu" in file.read_text() for file in files) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests with a server, and run files that start processes first, as they take longest."""
    for item in items:
        if not _SERVERS.isdisjoint(item.fixturenames):
            item.add_marker("integration")
    files = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: item.path not in files)


@pytest.fixture(autouse=True)
def only_marked_tests_start_processes(request):
    """Keep ``make quick`` quick: a test that starts a process is no unit test."""
    before = len(_started)
    yield
    if request.node.get_closest_marker("integration") is None:
        assert not _started[before:], "mark it integration: it starts a process"


@pytest.fixture
async def broker(tmp_path):
    """A running embedded broker for the run ``run``, with its credentials."""
    broker = EmbeddedBroker(tmp_path / "state", "run")
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def logged(caplog):
    """The log records from here on, to wait for."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
