"""``torchloom logs``: the log lines of all epochs and workers."""

import json

import pytest

from tests.recorded_epoch import Recorder
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Hello, Note

pytestmark = pytest.mark.integration


@pytest.fixture
def logged(folder):
    """A folder with an epoch in which two workers on two nodes have logged."""
    recorder = Recorder(run_folder(folder.path / ".torchloom", "run"), 1)
    recorder.step(Recovered(epoch=1))
    for rank, node in ((0, "node7"), (1, "node8")):
        worker = {"run": "run", "worker": f"g0-{rank}", "incarnation": 1}
        recorder.step(Hello(**worker, group="g0", rank=rank, node=node))
        for level, text in (
            ("warning", f"rank {rank} is slow\x1b[2J"),
            ("error", "no\nTraceback: <b>\n  line"),
        ):
            fields = {"level": level, "logger": "mine", "text": text}
            recorder.step(Note(**worker, kind="log", fields=fields))
        recorder.step(Note(**worker, kind="hang", fields={"text": "no line of a log"}))
    recorder.writer.close()
    return folder


def lines(folder, *words):
    result = folder.torchloom("logs", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_line_has_time_worker_and_level(logged):
    printed = lines(logged)
    assert len(printed) == 8
    assert printed[0].endswith(" g0-0 warning mine: rank 0 is slow\\x1b[2J")
    assert printed[1].endswith(" g0-0 error mine: no")
    assert printed[2:4] == ["    Traceback: <b>", "      line"]


def test_an_empty_selection_gives_a_warning(logged):
    result = logged.torchloom("logs", "--node", "node9")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.startswith("warning: no matching log lines in ")
    assert logged.torchloom("logs", "--node", "node9", "--json").stderr == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("--worker", "g0-1"), 2),
        (("--node", "node7"), 2),
        (("--node", "node9"), 0),
        (("--level", "error"), 2),
        (("--level", "critical"), 0),
        (("--last", "1"), 1),
        (("--worker", "g0-1", "--level", "error"), 1),
    ],
)
def test_lines_are_filtered_by_worker_node_and_level(logged, words, count):
    found = [json.loads(line) for line in lines(logged, "--json", *words)]
    assert len(found) == count
    assert all({"ts_ns", "worker", "level", "logger", "text"} <= set(line) for line in found)


def test_a_missing_trajectory_is_one_line(folder):
    result = folder.torchloom("logs")
    assert result.returncode == 4
    assert result.stderr.count("\n") == 1
    assert "need the folder of a trajectory" in result.stderr
