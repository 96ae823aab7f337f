"""A group that hangs is named, looked at, cut off and ended, by a real Weaver; the rest go on.

One that is well, and takes long over a step, is left alone.
"""

import re
from pathlib import Path

import pytest

from tests.preloaded import Preloaded

pytestmark = [pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parent.parent / "threadlet" / "quorum_trainer.py"
CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.2

[costs]
checkpoint_s = 0
restart_s = 1

[policies.hang]
least_s = 3
"""


@pytest.fixture(name="start_with")
def start_with_fixture(start_run, lighthouse):
    """Return a function that starts a Weaver, and returns its run and a starter of trainers."""
    runs = []

    def start_with(config):
        runs.append(start_run(config))
        runs[-1].start_weaver()
        return runs[-1], starter(runs[-1], lighthouse)

    yield start_with
    for run in runs:
        run.close()  # the next test has the same lighthouse


def starter(run, lighthouse):
    def start(group, *arguments):
        command = [TRAINER, "--lighthouse", lighthouse, "--group", group]
        command += ["--journal", f"{group}.jsonl", *arguments]
        return run._start(group, Preloaded, command, {})

    return start


def committed_among(trainer, participants, after=0):
    rows = [row for row in trainer.rows[after:] if row["participants"] == participants]
    return any(row["committed"] for row in rows)


def test_the_group_that_the_others_wait_for_is_evicted_and_they_go_on(start_with, until):
    run, start = start_with(CONFIG)
    survivors = [start("g0"), start("g2")]
    hung = start("g1", "--plant", "hang", "--among", "3", "--after", "50")
    for trainer in survivors:
        until(lambda trainer=trainer: committed_among(trainer, 3))
    done = [len(trainer.rows) for trainer in survivors]

    (outcome,) = until(lambda: evictions(run))
    assert (outcome["action"]["group"], outcome["result"]) == ("g1", "done")
    (reason,) = [
        body["proposal"]["reason"]
        for _, body in run.records("proposed")
        if body["proposal"]["action"]["kind"] == "evict"
    ]
    assert re.search(
        r"no CPU time for \d+ s, stack unchanged for \d+ s in quorum_trainer.py:\d+ in allreduce, "
        r"its dump was taken; 2 workers of its quorum wait",
        reason,
    )
    assert outcome["detail"] == "g1 was evicted from the quorum and was terminated"
    assert hung.process.wait() == -9
    for trainer, rows in zip(survivors, done, strict=True):
        until(lambda trainer=trainer, rows=rows: committed_among(trainer, 2, rows))
        assert sum(not row["committed"] for row in trainer.rows) <= 1

    dumps = {n["worker"]: n["fields"] for _, n in run.records("note") if n["kind"] == "dump"}
    culprit = dumps.pop("g1-0")
    victim = next(iter(dumps.values()))  # the worker that waited longest, at one tick or the next
    assert (culprit["phase"], victim["phase"]) == ("compute", "allreduce")
    assert culprit["enqueued_seq"] == victim["enqueued_seq"] - 1
    assert culprit["quorum_id"] == victim["quorum_id"]
    assert victim["collective"].startswith("gloo:all_reduce")

    rows = [len(trainer.rows) for trainer in survivors]
    start("g1")
    for trainer, after in zip(survivors, rows, strict=True):
        until(lambda trainer=trainer, after=after: committed_among(trainer, 3, after))
    assert len(evictions(run)) == 1


WELL = """
[weaver]
state_dir = "state"
tick_s = 0.2

[costs]
checkpoint_s = 0

[policies.hang]
mode = "act"
"""


@pytest.mark.parametrize(
    ("options", "for_s", "operations"),
    [
        ("least_s = 8\nratio = 1", 11, "compute,phase"),
        ("", 50, "hold,compute"),
    ],
    ids=["scaled", "by default"],
)
def test_a_group_that_takes_long_over_a_step_and_is_well_is_left_alone(
    start_with, until, options, for_s, operations
):
    run, start = start_with(WELL + options)
    plants = ["--plant", operations, "--among", "3", "--after", "80", "--for-s", str(for_s)]
    groups = [
        start(name, "--step-s", "0.1", *more)
        for name, more in (("g0", ()), ("g1", plants), ("g2", ()))
    ]

    def goes_on_after_all(trainer):
        assert not evictions(run)
        among = [row for row in trainer.rows if row["participants"] == 3]
        return len(among) > 80 * len(operations.split(",")) + 20

    for trainer in groups:
        until(lambda trainer=trainer: goes_on_after_all(trainer))
    assert [trainer.process.poll() for trainer in groups] == [None] * 3
    assert not evictions(run)
    assert all(row["committed"] for trainer in groups for row in trainer.rows)
    (detail,) = [plugin["detail"] for plugin in run.ask("status")["plugins"]]
    assert re.match(rf"time limit \d+ s \(.*longest step {for_s}", detail), detail


def evictions(run):
    outcomes = [body for _, body in run.records("outcome")]
    return [outcome for outcome in outcomes if outcome["action"]["kind"] == "evict"]
