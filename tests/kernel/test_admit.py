"""An admitted standby joins for good, in addition to the present groups."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, three_groups
from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.decisions import Issue, Outcome, Verdict
from torchloom_core.wire.operations import Join


@pytest.fixture
def run() -> Run:
    built = three_groups(make_kernel())
    built.feed(hello("s-1", state="standby", group="s", rank=1))
    return built


def admit(run: Run, group: str = "s") -> list:
    return run.ask(AdmitGroup(group=group))


def refusal(run: Run, group: str = "s") -> str:
    verdict = only(Verdict, admit(run, group))
    assert (verdict.granted, verdict.rule) == (False, "impossible")
    return verdict.reason


def test_an_admission_is_done_once_all_workers_of_the_group_train(run):
    issued = [issue.command for issue in of(Issue, admit(run))]
    assert [(one.worker, one.do) for one in issued] == [("s-0", Join()), ("s-1", Join())]
    for command in issued:
        assert of(Outcome, run.ack(command)) == []
    assert of(Outcome, run.report("s-0")) == []
    outcome = only(Outcome, run.report("s-1"))
    assert (outcome.result, outcome.detail) == ("done", "s joined")
    assert run.commands() == issued


def test_a_standby_that_ends_before_it_trains_is_not_admitted(run):
    for issue in of(Issue, admit(run)):
        run.ack(issue.command)
    outcome = only(Outcome, run.exit("s-1"))
    assert (outcome.result, outcome.detail) == ("partial", "standby s-1 ended before it trained")


def test_a_standby_that_never_trains_ends_the_plan_after_the_deadline(run):
    for issue in of(Issue, admit(run)):
        run.ack(issue.command)
    assert of(Outcome, run.tick(120.0)) == []
    outcome = only(Outcome, run.tick(1.0))
    assert outcome.detail == "standby s-0, s-1 did not train in time"


def test_only_a_standby_can_be_admitted(run):
    assert refusal(run, "a") == "group a is already training"
    assert refusal(run, "t").startswith("no group is called 't'")
    run.exit("s-0")
    run.exit("s-1")
    assert refusal(run) == "group s has ended"


def test_a_standby_on_a_cordoned_node_is_not_admitted(run):
    run.ask(CordonNode(node="node-s"))
    assert refusal(run) == "standby s is on node-s, which is cordoned"


def test_an_unreachable_standby_is_not_admitted(run):
    run.report("s-0", state="standby")
    run.now_ns += 11 * 10**9
    assert refusal(run) == "standby s is unreachable"


def test_a_standby_is_reserved_once(run):
    run.feed(hello("r-0", state="standby"))
    run.ask(Migrate(group="a"))
    assert refusal(run, "r") == "standby r is already joining or draining"
    admit(run)
    leave = only(Verdict, run.ask(DrainGroup(group="s")))
    assert leave.reason == "standby s is about to join"
    assert only(Verdict, run.ask(Migrate(group="b"))).reason == (
        "no standby fits b: need as many reachable workers, on other nodes that are not cordoned"
    )


def test_a_standby_that_is_being_drained_is_not_admitted(run):
    run.ask(DrainGroup(group="s"))
    assert only(Verdict, admit(run)).rule == "impossible"
