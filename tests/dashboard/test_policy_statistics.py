"""What came of each policy is counted, also when its stories are forgotten."""

import msgspec
import pytest

from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.live.dashboard.policy_statistics import MOST_POLICIES, PolicyCounts
from torchloom_core.live.dashboard.record import MOST_STORIES, Record
from torchloom_core.wire.decisions import Judged, Outcome, Verdict

MOVE = Migrate(group="g1")


@pytest.fixture
def record():
    return Record()


def tell(record, message):
    record.take(message.__struct_config__.tag, msgspec.json.encode(message), 1e9)


def decide(record, number, *, granted=True, policy="mover", action=MOVE):
    verdict = Verdict(
        proposal=f"p1.{number}",
        policy=policy,
        action=action,
        granted=granted,
        rule="net_gain",
        reason="because",
        net_gpu_s=10.0,
    )
    tell(record, verdict)


def end(record, number, result, action=MOVE):
    done = Outcome(
        verdict=f"p1.{number}", policy="mover", action=action, result=result, detail="", took_s=1.0
    )
    tell(record, done)


def test_verdicts_outcomes_and_what_the_guard_said_are_counted_by_policy(record):
    for number, result in enumerate(("done", "done", "partial", "undone")):
        decide(record, number)
        end(record, number, result)
    decide(record, 4, granted=False)
    for number, hurt in enumerate((False, True, None)):
        tell(record, Judged(verdict=f"p1.{number}", hurt=hurt, text="loss 2.1", before={}))
    decide(record, 5, policy="other")
    assert record.statistics.of == {
        "mover": PolicyCounts(
            granted=4,
            denied=1,
            net_gpu_s=40.0,
            done=2,
            partial=1,
            undone=1,
            harmless=1,
            hurt=1,
            unjudged=1,
        ),
        "other": PolicyCounts(granted=1, net_gpu_s=10.0),
    }


def test_a_proposal_counts_once_however_often_it_is_repeated(record):
    for number in range(1, 10):
        decide(record, number, granted=False)
    assert record.statistics.of["mover"] == PolicyCounts(denied=1)
    decide(record, 9)  # it is approved
    decide(record, 9)
    assert record.statistics.of["mover"] == PolicyCounts(granted=1, net_gpu_s=10.0)


def test_what_changes_nothing_is_not_counted(record):
    decide(record, 1, action=Alert(worker="g1-0", text="look"))
    end(record, 1, "done", action=Alert(worker="g1-0", text="look"))
    assert record.statistics.of == {"mover": PolicyCounts()}


def test_counts_outlive_the_stories_and_are_of_so_many_policies_at_most(record):
    for number in range(2 * MOST_STORIES):
        decide(record, number, policy=f"policy{number % (2 * MOST_POLICIES)}")
    assert len(record.statistics.of) == MOST_POLICIES
    assert {tally.granted for tally in record.statistics.of.values()} == {
        2 * MOST_STORIES // (2 * MOST_POLICIES)
    }


def test_what_people_ask_for_is_no_policy_s(record):
    decide(record, 1, policy="person")
    decide(record, 2)
    tell(record, Judged(verdict="p1.1", hurt=True, text="loss 9", before={}))
    assert list(record.statistics.of) == ["mover"]
