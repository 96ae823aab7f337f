"""A group that hangs is named, looked at, cut off and ended, by a real Weaver; the rest go on."""

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


@pytest.fixture(scope="module")
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    return run


def test_the_group_that_the_others_wait_for_is_evicted_and_they_go_on(run, until, lighthouse):
    def start(group, *arguments):
        command = [TRAINER, "--lighthouse", lighthouse, "--group", group]
        command += ["--journal", f"{group}.jsonl", *arguments]
        return run._start(group, Preloaded, command, {})

    def committed_among(trainer, participants, after=0):
        rows = [row for row in trainer.rows[after:] if row["participants"] == participants]
        return any(row["committed"] for row in rows)

    survivors = [start("g0"), start("g2")]
    hung = start("g1", "--plant", "hang", "--among", "3", "--after", "50")
    for trainer in survivors:
        until(lambda trainer=trainer: committed_among(trainer, 3))
    done = [len(trainer.rows) for trainer in survivors]

    (outcome,) = until(lambda: evictions(run))
    assert (outcome["action"]["group"], outcome["result"]) == ("g1", "done")
    assert outcome["detail"] == "the others were freed of g1, which was ended"
    assert hung.process.wait() == -9
    for trainer, rows in zip(survivors, done, strict=True):
        until(lambda trainer=trainer, rows=rows: committed_among(trainer, 2, rows))
        assert sum(not row["committed"] for row in trainer.rows) <= 1

    dumps = {n["worker"]: n["fields"] for _, n in run.records("note") if n["kind"] == "dump"}
    culprit = dumps.pop("g1-0")
    victim = next(iter(dumps.values()))  # who waited longest, at one tick or the next
    assert (culprit["phase"], victim["phase"]) == ("compute", "allreduce")
    assert culprit["enqueued_seq"] == victim["enqueued_seq"] - 1
    assert culprit["quorum_id"] == victim["quorum_id"]
    assert victim["collective"].startswith("gloo:all_reduce")

    rows = [len(trainer.rows) for trainer in survivors]
    start("g1")
    for trainer, after in zip(survivors, rows, strict=True):
        until(lambda trainer=trainer, after=after: committed_among(trainer, 3, after))
    assert len(evictions(run)) == 1


def evictions(run):
    outcomes = [body for _, body in run.records("outcome")]
    return [outcome for outcome in outcomes if outcome["action"]["kind"] == "evict"]
