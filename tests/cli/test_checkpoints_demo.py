"""The report of the checkpoints demo matches the ranks' journals and what was saved."""

import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from torchloom_core.checkpoints.layout import Folder
from torchloom_core.demos.checkpoints.incidents import Incident, Save, first_rows, moment
from torchloom_core.demos.checkpoints.job import whole_in
from torchloom_core.demos.checkpoints.memory import free_memory
from torchloom_core.demos.checkpoints.report import Recorded, Report, show, summary_of
from torchloom_core.demos.checkpoints.script import SCRIPT
from torchloom_core.demos.steplog import StepLog
from torchloom_core.live.trajectory.recovery_phases import Recovery
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE, TIERS

RANKS = 3
STARTS = ((0.0, -1, 30, 6.0), (50.0, 26, 50, 2.0), (100.0, 40, 60, 2.0))
"""Begin of each start, s; the step restored, the last step, and the interval in memory, s."""
COMPLETE = {MEMORY: {Folder(1, 26, "a" * 8)}, PATH: {Folder(1, 20, "a" * 8)}}
COMPLETE[REMOTE] = {Folder(1, 9, "a" * 8)}


def row(rank, start, step):
    begun, restored, _, every_s = STARTS[start]
    return {
        "t": begun + step - restored,
        "step": step,
        "committed": True,
        "loss": 1.0 / (step + rank + 1),
        "every_s": {MEMORY: every_s, PATH: 9.0, REMOTE: 60.0},
        "saving": [],
        "pid": 10 * start + rank + 1,
        "from": restored,
        "memory": f"/dev/shm/none-{rank}",
    }


def journal(path, rank, starts):
    log = StepLog(path)
    for start in starts:
        _, restored, last, _ = STARTS[start]
        log.steps += [row(rank, start, step) for step in range(restored + 1, last + 1)]
    return log


@pytest.fixture
def ranks(tmp_path):
    return [journal(tmp_path / f"g0-{rank}", rank, (0, 1, 2)) for rank in range(RANKS)]


@pytest.fixture
def undisturbed(tmp_path):
    logs = [StepLog(tmp_path / f"u-{rank}") for rank in range(RANKS)]
    for rank, log in enumerate(logs):
        log.steps = [row(rank, 0, step) for step in range(61)]
    return logs


@pytest.fixture
def incidents(tmp_path):
    before = [journal(tmp_path / f"b{rank}", rank, (0,)) for rank in range(RANKS)]
    first = moment(31.5, before, COMPLETE)
    second = replace(first, at=75.0, step=50, newest={MEMORY: 48, PATH: 40, REMOTE: 9})
    second = replace(second, every_s={**first.every_s, MEMORY: 2.0})
    return [
        Incident("node-1 lost", first, 26, (MEMORY,), 51.0),
        Incident("node-3 and node-2 lost", second, 40, (PATH,), 101.0),
    ]


def recovery(at, seconds):
    return Recovery(
        group="g0",
        cause="g0-1 was killed",
        node="node-1",
        step=30,
        lost_ns=int(at * 1e9),
        ended_ns=int((at + sum(seconds.values())) * 1e9),
        phases=seconds,
        phase="",
        total_s=sum(seconds.values()),
        longest="import",
        advice="",
        failed_starts=0,
        by="g0",
        nodes=(),
        stood_still_s=None,
    )


@pytest.fixture
def report(incidents, ranks, undisturbed):
    saves = [Save(tier, max(COMPLETE[tier]), 31.0) for tier in TIERS]
    found = [
        recovery(31.6, {"relaunch": 4.0, "import": 15.4}),
        recovery(75.0, {"detect": 0.1, "import": 25.8}),
    ]
    recorded = Recorded(found, {MEMORY: [0.01, 0.03, 0.02]}, {MEMORY: [3e6]})
    return Report(incidents, saves, ranks, undisturbed, recorded)


def failed(report):
    return [promise for promise, passed in report.promises().items() if not passed]


def test_a_good_run_passes_all_checks(report):
    assert failed(report) == []


def test_a_failure_lost_what_was_trained_since_the_restored_checkpoint(incidents):
    first = incidents[0]
    assert first.before.newest == {MEMORY: 26, PATH: 20, REMOTE: 9}
    assert (first.lost_steps, first.lost_steps_by_remote) == (4, 21)
    assert first.seconds_of(first.lost_steps_by_remote) == pytest.approx(21.0)
    assert first.seconds == pytest.approx(19.5)


def test_the_ranks_are_back_with_the_first_step_of_new_processes(ranks):
    assert [one["step"] for one in first_rows(ranks, {1, 2, 3})] == [27, 27, 27]
    assert [one["pid"] for one in first_rows(ranks, {1, 2, 3, 11, 12})] == [21, 22, 13]


def test_one_loss_with_another_last_bit_is_found_and_shown(report):
    rows = report.ranks[2].steps
    rows[-1] = {**rows[-1], "loss": rows[-1]["loss"] * (1 + 2**-52)}
    assert failed(report) == [
        "225 losses of 3 ranks in 3 starts are bitwise those of an undisturbed run"
    ]
    shown = StringIO()
    show(Console(file=shown, width=120), report)
    assert "rank 2, step 60" in shown.getvalue()


def test_another_tier_and_a_recovery_that_the_record_lacks_fail_the_checks(report):
    first = replace(report.incidents[0], tiers=(MEMORY, PATH))
    recorded = replace(report.recorded, recoveries=report.recorded.recoveries[:1])
    bad = replace(report, incidents=[first, report.incidents[1]], recorded=recorded)
    assert len(failed(bad)) == 2


def test_the_tables_and_the_summary_are_written(report):
    shown = StringIO()
    show(Console(file=shown, width=120), report)
    text = shown.getvalue()
    assert "4, 4.0 s" in text
    assert "20 ms" in text
    assert "…" not in text
    summary = json.loads(json.dumps(summary_of(report, seed=3)))
    assert summary["incidents"][1]["phases"] == {"detect": 0.1, "import": 25.8}


def test_only_the_memory_of_this_demo_is_freed(tmp_path):
    own = Path(f"/dev/shm/torchloom-store-{os.getuid()}-of-a-test-{os.getpid()}")
    other = tmp_path / own.name
    for folder in (own, other):
        folder.mkdir()
    rows = [{"pid": 2**30, "memory": str(folder)} for folder in (own, other)]
    lines = "\n".join([*map(json.dumps, rows), '{"step": 1, "mem'])
    (tmp_path / "g0-0.jsonl").write_text(lines)
    free_memory(tmp_path)
    assert not own.exists()
    assert other.exists()


def test_lost_nodes_are_named_and_a_process_by_its_node():
    nodes = ["node-0", "node-3", "node-2"]
    assert SCRIPT[0].text(nodes) == "node-3 lost"
    assert SCRIPT[1].text(nodes) == "process on node-2"
    assert SCRIPT[-1].text(nodes) == "node-3 and node-2 lost"


def test_a_checkpoint_in_memory_is_gone_once_both_copies_of_a_part_are(tmp_path):
    places = {tmp_path / "node-0", tmp_path / "node-1"}
    folder = Folder(1, 26, "a" * 8)
    for name, place in zip(("rank-0.bin", "rank-1.bin"), sorted(places), strict=True):
        (place / str(folder)).mkdir(parents=True)
        (place / str(folder) / name).touch()
    needed = {"rank-0.bin", "rank-1.bin"}
    assert whole_in(places, needed) == {folder}
    assert whole_in({tmp_path / "node-0"}, needed) == set()
