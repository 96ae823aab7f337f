"""A hung group is evicted: the others continue, and it is terminated if requested."""

import pytest

from tests.kernel.runs import (
    Run,
    hello,
    in_quorum,
    lighthouse_view,
    make_kernel,
    of,
    only,
    three_groups,
)
from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.decisions import Issue, Outcome, Verdict
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.operations import Cut, Join, Terminate
from torchloom_core.wire.steering import Evict, Steer

QUORUM = 7


@pytest.fixture
def run() -> Run:
    built = three_groups(make_kernel())
    for group in "abc":
        built.feed(in_quorum(f"{group}-0", QUORUM))
    built.feed(lighthouse_view())
    return built


def issued(outputs):
    return [(issue.command.worker, issue.command.do) for issue in of(Issue, outputs)]


def finish(run: Run, outputs) -> list:
    """Apply all commands, stage after stage, and return all outputs."""
    results = list(outputs)
    for output in results:  # which grows
        if isinstance(output, Issue):
            results += run.ack(output.command)
    return results


def test_the_others_are_cut_off_before_the_group_is_ended(run):
    outputs = run.ask(EvictGroup(group="b"))
    assert issued(outputs) == [("a-0", Cut(quorum_id=QUORUM)), ("c-0", Cut(quorum_id=QUORUM))]
    results = finish(run, outputs)
    assert issued(results)[2:] == [("b-0", Terminate())]
    outcome = only(Outcome, results)
    assert outcome.result == "done"
    assert outcome.detail == "b was evicted from the quorum and was terminated"


def test_a_group_with_unknown_quorum_cannot_be_evicted_with_wait():
    run = three_groups(make_kernel())
    verdict = only(Verdict, run.ask(EvictGroup(group="b", then="wait")))
    assert not verdict.granted
    assert verdict.reason == "b has not reported its quorum"


def test_a_group_that_may_rejoin_is_not_terminated(run):
    results = finish(run, run.ask(EvictGroup(group="b", then="wait")))
    assert Terminate() not in dict(issued(results)).values()
    assert only(Outcome, results).detail == "b was evicted from the quorum and may rejoin"


def test_the_standby_that_replaces_it_is_reserved_at_the_start(run):
    outputs = run.ask(EvictGroup(group="b", then="replace"))
    other = only(Verdict, run.ask(Migrate(group="a")))
    assert (other.granted, other.rule) == (False, "impossible")
    assert issued(finish(run, outputs))[2:] == [("s-0", Join()), ("b-0", Terminate())]


def test_the_lighthouse_gets_the_quorum_id_at_once(run):
    steer = only(Steer, run.ask(EvictGroup(group="b")))
    assert steer.do == Evict(replicas=("b:uuid",), quorum_id=QUORUM)
    assert (steer.epoch, steer.number, steer.reason) == (1, 1, "b hangs")


def test_a_group_in_another_quorum_is_not_cut_off(run):
    run.feed(in_quorum("c-0", QUORUM + 1))
    assert issued(run.ask(EvictGroup(group="b"))) == [("a-0", Cut(quorum_id=QUORUM))]


def test_without_a_known_quorum_the_group_is_terminated_and_none_is_cut_off():
    run = three_groups(make_kernel())
    assert issued(run.ask(EvictGroup(group="b"))) == [("b-0", Terminate())]


def test_the_quorum_of_another_incarnation_is_ignored(run):
    run.feed(hello("b-0", incarnation=2))
    assert issued(run.ask(EvictGroup(group="b"))) == [("b-0", Terminate())]


@pytest.mark.parametrize(
    ("group", "then", "reason"),
    [
        ("x", "restart", "no group is called 'x'"),
        ("s", "restart", "group s is not training"),
        ("b", "replace", "no standby fits b"),
    ],
)
def test_an_impossible_eviction_is_denied(run, group, then, reason):
    run.feed(Exit(run="run", worker="s-0", incarnation=1, status=0, expected=True)) if (
        then == "replace"
    ) else None
    verdict = only(Verdict, run.ask(EvictGroup(group=group, then=then)))
    assert verdict.rule == "impossible"
    assert verdict.reason.startswith(reason)


def test_a_threadlet_without_cut_does_not_delay_the_others(run):
    for worker in ("a-0", "b-0"):
        run.feed(in_quorum(worker, QUORUM, actuators=("drain",)))
    results = finish(run, run.ask(EvictGroup(group="b")))
    assert issued(results) == [("c-0", Cut(quorum_id=QUORUM))]
    assert only(Outcome, results).result == "done"


def test_the_only_training_group_cannot_be_evicted():
    run = Run(make_kernel())
    run.feed(hello("a-0"))
    verdict = only(Verdict, run.ask(EvictGroup(group="a")))
    assert verdict.reason == "no other group trains, so none waits for a"
