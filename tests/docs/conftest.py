import sys

import pytest

from torchloom_core.cli.installed_commands import add_installed
from torchloom_core.config.schema import Config
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Hello, KnobSpec, Telemetry
from torchloom_core.wire.requests import Propose, Request

WHO = {"run": "run", "worker": "g0-0", "incarnation": 1}
SECOND_NS = 10**9

add_installed(["trace", "import"])
add_installed([])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder for a page's code, with a short trajectory and no Weaver."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TORCHLOOM_JOIN", raising=False)
    before = set(sys.modules)
    record(run_folder(tmp_path / ".torchloom", "run"))
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def record(root):
    """Write a trajectory with one worker whose knob was set."""
    writer = TrajectoryWriter(root, "run", 1, Config(), {}, SECOND_NS)
    kernel = Kernel(Config(), ActivePlugins(), RecordedGuard())
    seconds = iter(range(1, 100))

    def enter(message):
        ts_ns = next(seconds) * SECOND_NS
        outputs = kernel.step(message, ts_ns)
        if isinstance(message, Telemetry):
            writer.telemetry(encode_telemetry(message), ts_ns)
        else:
            writer.event(message, ts_ns, outputs)

    knob = KnobSpec(name="lr", kind="float")
    enter(Hello(**WHO, group="g0", rank=0, node="n0", knobs=(knob,), values={"lr": 0.1}))
    for seq in range(3):
        enter(batch(seq))
    enter(Tick())
    enter(Request(id="r1.1", want=Propose(action=ChangeKnob(knob="lr", value=0.2))))
    (command,) = kernel.commands.flights
    enter(Ack(**WHO, command=command, epoch=0, status="applied", step=3))
    writer.close()


def batch(seq):
    return Telemetry(
        **WHO,
        seq=seq,
        state="training",
        step=seq,
        progress_age_s=0.0,
        metrics=("step_time_s",),
        ts_ns=((seq + 1) * SECOND_NS).to_bytes(8, "little"),
        values=bytes.fromhex("000000000000f03f"),
    )
