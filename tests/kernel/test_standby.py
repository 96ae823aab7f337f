"""Which standby a group is moved to, and why there may be none."""

from typing import Any

from tests.kernel.runs import Run, Says, active, hello, make_kernel, of, only, proposal, telemetry
from torchloom_core.wire.actions import ChangeKnob, DrainGroup, Migrate
from torchloom_core.wire.events import Issue, Verdict
from torchloom_core.wire.requests import ResumeActions, StopActions

CONFIG = "[arbiter]\nmax_in_motion_share = 1\n[arbiter.breaker]\nmax_moved_share = 1"


def run_with(*workers: tuple[str, dict[str, Any]]) -> Run:
    run = Run(make_kernel(config=CONFIG))
    for worker, changes in workers:
        run.feed(hello(worker, **changes))
    return run


def joined(run: Run, group: str = "a") -> list[str]:
    """Return who is told to join when the group moves."""
    return [issue.command.worker for issue in of(Issue, run.ask(Migrate(group=group)))]


def refusal(run: Run, group: str = "a") -> str:
    return only(Verdict, run.ask(Migrate(group=group))).reason


STANDBY = {"state": "standby"}


def test_a_standby_on_the_node_at_risk_is_no_help():
    run = run_with(("a-0", {"node": "n1"}), ("s-0", {**STANDBY, "node": "n1"}))
    assert refusal(run) == (
        "no standby fits a: need as many reachable workers, on other nodes that are not cordoned, "
        "heard of lately"
    )


def test_a_standby_must_have_as_many_workers():
    run = run_with(("a-0", {}), ("a-1", {}), ("s-0", STANDBY))
    assert refusal(run).startswith("no standby fits a")
    run.feed(hello("s-1", **STANDBY))
    assert joined(run) == ["s-0", "s-1"]


def test_a_standby_that_was_not_heard_of_lately_is_not_taken():
    run = run_with(("s-0", STANDBY))
    run.tick(10.5)
    run.feed(hello("a-0"))
    assert refusal(run).startswith("no standby fits a")
    run.hear("s-0", state="standby")
    assert joined(run) == ["s-0"]


def test_a_standby_in_another_rack_comes_before_one_in_the_same():
    run = run_with(
        ("a-0", {"rack": "r1"}),
        ("s-0", {**STANDBY, "rack": "r1"}),
        ("t-0", {**STANDBY, "rack": "r2"}),
    )
    assert joined(run) == ["t-0"]


def test_two_groups_are_not_moved_to_one_standby():
    run = run_with(("a-0", {}), ("b-0", {}), ("s-0", STANDBY))
    assert joined(run, "a") == ["s-0"]
    assert refusal(run, "b").startswith("no standby fits b")


def test_two_groups_at_once_get_two_standbys_even_in_one_tick():
    says = Says()
    run = Run(make_kernel([active("says", says)], CONFIG))
    for worker in ("a-0", "b-0"):
        run.feed(hello(worker))
    for worker in ("s-0", "t-0"):
        run.feed(hello(worker, **STANDBY))
    says.next = [proposal(Migrate(group="a")), proposal(Migrate(group="b"))]
    assert [i.command.worker for i in of(Issue, run.tick())] == ["s-0", "t-0"]


def test_without_a_standby_or_a_group_the_refusal_says_so():
    run = run_with(("a-0", {"framework": "torchft"}), ("b-0", {"framework": "torchrun"}))
    assert refusal(run) == "no standby is left"
    assert refusal(run, "b") == (
        "this run cannot migrate: need a standby and the framework torchft, was no standby and "
        "torchrun"
    )
    assert refusal(run, "aa") == "no group is called 'aa'; did you mean a?"
    run.hear("a-0", state="draining")
    assert refusal(run) == "group a is not training"


def test_a_standby_whose_rack_is_not_known_is_in_nobodys_rack():
    run = run_with(("a-0", {}), ("s-0", STANDBY), ("t-0", {**STANDBY, "rack": "r1"}))
    assert joined(run) == ["s-0"]


def test_a_standby_that_was_heard_of_just_in_time_is_taken():
    run = run_with(("s-0", STANDBY))
    run.tick(10.0)
    run.feed(hello("a-0"))
    assert joined(run) == ["s-0"]


def test_a_standby_that_is_told_a_knob_is_taken_all_the_same():
    run = run_with(("a-0", {}), ("s-0", STANDBY))
    told = of(Issue, run.ask(ChangeKnob(knob="lr", value=0.5)))
    assert [issue.command.worker for issue in told] == ["a-0", "s-0"]
    assert joined(run) == ["s-0"]


def test_a_standby_whose_drain_was_taken_back_is_not_taken_but_may_be_drained_again():
    run = run_with(("a-0", {}), ("s-0", STANDBY))
    run.ask(DrainGroup(group="s"))
    run.want(StopActions())
    run.want(ResumeActions())
    assert refusal(run).startswith("no standby fits a")
    assert only(Verdict, run.ask(DrainGroup(group="s"))).granted


def test_two_migrations_go_on_in_one_tick():
    run = run_with(("a-0", {}), ("b-0", {}), ("s-0", STANDBY), ("t-0", STANDBY))
    for group in "ab":
        for issue in of(Issue, run.ask(Migrate(group=group))):
            run.ack(issue.command)
    run.feed(telemetry("s-0"))
    run.feed(telemetry("t-0"))
    drains = of(Issue, run.tick())
    assert [issue.command.worker for issue in drains] == ["a-0", "b-0"]
