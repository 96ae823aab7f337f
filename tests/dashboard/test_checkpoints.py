"""What the dashboard shows of checkpoints: tiers, saves and failures, of any number of ranks."""

import pytest

from tests.dashboard.test_recorded_run import read
from tests.dashboard.workers import batch, hello
from tests.recorded_epoch import Recorder
from torchloom_core.live.dashboard.board import Board
from torchloom_core.live.dashboard.checkpoints import MOST_EVENTS, Checkpoints
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Note

NOW_S = 100.0


def note(kind, worker="g0-0", **fields):
    return Note(run="run", worker=worker, incarnation=1, kind=f"checkpoint_{kind}", fields=fields)


def saved(step, tier="path", **more):
    return note("saved", tier=tier, step=step, seconds=1.5, bytes=4096, felt_s=0.2, **more)


@pytest.fixture
def board():
    board = Board(10.0)
    for worker, lost_s in (("g0-0", 30.0), ("g0-1", 31.0)):
        board.add(hello(worker), NOW_S)
        metrics = {"unsaved_memory_s": 4.0, "unsaved_work_s": lost_s, "checkpoint_felt_s": 0.25}
        board.take(batch([metrics], worker), NOW_S)
    return board


def test_a_failure_is_priced_by_the_rank_that_would_lose_most_and_all_gpus(board):
    checkpoints = Checkpoints()
    checkpoints.gpus_per_worker = 8.0
    checkpoints.take(saved(40), NOW_S)
    memory, path = checkpoints.tiers(board, NOW_S)
    assert (memory["tier"], memory["lost_gpu_s"], memory["newest"]) == ("memory", 64.0, {})
    assert (path["tier"], path["unsaved_s"], path["lost_gpu_s"]) == ("path", 31.0, 496.0)
    assert (path["felt_s"], path["newest"]["saved"]["step"]) == (0.25, 40)
    (_, later) = checkpoints.tiers(board, NOW_S + 60)  # no rank is in the run any more
    assert (later["unsaved_s"], later["counts"]["saved"]) == (None, 1)


def test_a_run_without_checkpoints_has_no_tier(board):
    assert Checkpoints().tiers(Board(10.0), NOW_S) == []


def test_ranks_that_report_one_failure_are_one_event():
    checkpoints = Checkpoints()
    checkpoints.take(saved(40), NOW_S)
    for rank in range(1000):
        failed = note("failed", f"g0-{rank}", tier="path", step=50, why="disk\nfull")
        checkpoints.take(failed, NOW_S + 1)
    version = checkpoints.version
    assert [(one["step"], one["why"]) for one in checkpoints.since(0)] == [
        (40, ""),
        (50, "disk full"),
    ]
    (path,) = checkpoints.tiers(Board(10.0), NOW_S)
    assert (path["counts"]["failed"], path["newest"]["failed"]["reports"]) == (1, 1000)
    assert checkpoints.since(version) == []
    checkpoints.take(note("not_copied", tier="memory", step=60, why="no node"), NOW_S + 2)
    assert [one["kind"] for one in checkpoints.since(version)] == ["checkpoint_not_copied"]


def test_what_is_no_number_and_no_tier_is_no_error_and_old_events_go():
    checkpoints = Checkpoints()
    checkpoints.take(note("failed", tier="moon", step="x", why="the writer has ended"), NOW_S)
    checkpoints.take(saved(-1, "path", more=True), NOW_S)
    for step in range(MOST_EVENTS):
        checkpoints.take(saved(step, "remote"), NOW_S + step)
    rows = checkpoints.tiers(Board(10.0), NOW_S)
    assert [row["tier"] for row in rows] == ["path", "remote", ""]
    assert rows[2]["newest"]["failed"]["step"] == -1
    assert [one["step"] for one in checkpoints.since(0)] == list(range(MOST_EVENTS))


async def test_a_recorded_run_has_its_checkpoints(tmp_path):
    recorder = Recorder(tmp_path, 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(hello())
    recorder.step(batch([{"unsaved_work_s": 7.0}]))
    recorder.step(saved(40))
    recorder.writer.close()
    past = await read(tmp_path)
    (path,) = past.checkpoints.tiers(past.board, past.now_s)
    assert (path["unsaved_s"], path["newest"]["saved"]["bytes"]) == (7.0, 4096)
