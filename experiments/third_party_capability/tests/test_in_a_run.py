"""A real Weaver and trainer in processes of their own, and a backtest."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TORCHLOOM = (sys.executable, "-m", "torchloom_core.cli")
TRAINER = Path(__file__).with_name("trainer.py")
DEADLINE_S = 60.0

CONFIG = """
[weaver]
tick_s = 0.1

[arbiter]
cooldown_s = 0

[policies.flush_watch]
mode = "shadow"

[effectors.flush_marker]
mode = "act"
folder = "checkpoints"
"""

EVALUATE = """
[evaluate]
groups = 4
days = 0.5
checkpoint_interval_s = 10800

[policies.flush_watch]
unsaved_s = 1200
"""


def torchloom(*words):
    done = subprocess.run([*TORCHLOOM, *words], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr + Path("weaver.err").read_text()
    return done.stdout


def until(found):
    end_s = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < end_s, Path("weaver.err").read_text()
        time.sleep(0.1)
    return value


def status():
    return json.loads(torchloom("status", "--json"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Start a Weaver and two trainers in ``tmp_path``, and wait until they train."""
    monkeypatch.chdir(tmp_path)
    Path("torchloom.toml").write_text(CONFIG)
    Path("checkpoints").mkdir()
    join = tmp_path / ".torchloom" / "join.json"
    here = {"TORCHLOOM_JOIN": str(join), "TORCHLOOM_COLLECTORS": "unwritten"}
    started = []

    def start(*command, **environment):
        with Path("weaver.err").open("a") as errors:
            own = os.environ | environment
            started.append(subprocess.Popen(command, env=own, stdout=errors, stderr=errors))

    start(*TORCHLOOM, "weaver")
    until(join.exists)
    for group in ("g0", "g1"):
        start(sys.executable, TRAINER, TORCHLOOM_GROUP=group, **here)
    until(lambda: [row["state"] for row in status()["workers"]] == ["training"] * 2)
    yield
    for process in reversed(started):
        process.terminate()
        process.wait(DEADLINE_S)


def test_a_person_flushes_a_run(run):
    until(Path("checkpoints/step").exists)
    printed = torchloom("flush")
    assert "flush to g0-0 applied at step " in printed
    assert printed.endswith("done: checkpoints of 2 workers on disk\n")
    marker = until(lambda: _text(Path("checkpoints/flushed")))
    assert marker.endswith("checkpoints of 2 workers on disk\n")
    until(lambda: all("unwritten_bytes" in row["metrics"] for row in status()["workers"]))
    record = torchloom("trajectory", "show", ".torchloom/trajectory/run")
    assert "flush to g0-0 applied at step " in record
    assert ": on disk after " in record
    assert "checkpoints of 2 workers on disk" in record


def _text(path):
    return path.read_text() if path.exists() else ""


def test_a_policy_flushes_in_a_backtest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weaver.err").touch()
    Path("torchloom.toml").write_text(EVALUATE)
    Path("faults.toml").write_text("job_faults_per_day = 8.0\n")
    sizes = ("--nodes", "8", "--days", "2", "--interval-s", "0")
    torchloom("trace", "synthesize", "small.tltrace", *sizes, "--parameters", "faults.toml")
    torchloom(
        "evaluate", "small.tltrace", "--policy", "flush_watch", "--seeds", "1", "--no-sensitivity"
    )
    report = json.loads(Path("small-evaluation/report.json").read_text())
    arms = {arm["name"]: arm for arm in report["traces"][0]["simulation"]["arms"]}
    flushing = arms["flush_watch"]
    assert list(flushing["operations"]["granted"]) == ["flush"]
    assert flushing["buckets"]["checkpoint"] > arms["static_3h"]["buckets"]["checkpoint"]
    assert flushing["versus_without"]["value"] > 0
