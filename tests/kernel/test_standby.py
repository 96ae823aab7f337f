"""Which standby replaces a group, and why there may be none."""

from typing import Any

from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
)
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import Issue, Verdict
from torchloom_core.wire.requests import ResumeActions, StopActions

CONFIG = "[arbiter]\nmax_in_motion_share = 1\n[arbiter.breaker]\nmax_moved_share = 1"


def run_with(*workers: tuple[str, dict[str, Any]]) -> Run:
    run = Run(make_kernel(config=CONFIG))
    for worker, changes in workers:
        run.feed(hello(worker, **changes))
    return run


def joined(run: Run, group: str = "a") -> list[str]:
    """Return the workers that get a join when the group moves."""
    return [issue.command.worker for issue in of(Issue, run.ask(Migrate(group=group)))]


def refusal(run: Run, group: str = "a") -> str:
    return only(Verdict, run.ask(Migrate(group=group))).reason


STANDBY = {"state": "standby"}


def test_a_standby_on_the_node_at_risk_does_not_fit():
    run = run_with(("a-0", {"node": "n1"}), ("s-0", {**STANDBY, "node": "n1"}))
    assert refusal(run) == (
        "no standby fits a: need as many reachable workers, on other nodes that are not cordoned"
    )


def test_a_standby_must_have_as_many_workers():
    run = run_with(("a-0", {}), ("a-1", {}), ("s-0", STANDBY))
    assert refusal(run).startswith("no standby fits a")
    run.feed(hello("s-1", **STANDBY))
    assert joined(run) == ["s-0", "s-1"]


def test_an_unreachable_standby_is_not_used():
    run = run_with(("s-0", STANDBY))
    run.tick(10.5)
    run.feed(hello("a-0"))
    assert refusal(run).startswith("no standby fits a")
    run.report("s-0", state="standby")
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
    scripted = ScriptedPolicy()
    run = Run(make_kernel([active("scripted", scripted)], CONFIG))
    for worker in ("a-0", "b-0"):
        run.feed(hello(worker))
    for worker in ("s-0", "t-0"):
        run.feed(hello(worker, **STANDBY))
    scripted.next = [proposal(Migrate(group="a")), proposal(Migrate(group="b"))]
    assert [i.command.worker for i in of(Issue, run.tick())] == ["s-0", "t-0"]


def test_without_a_standby_or_a_group_the_denial_has_the_reason():
    run = run_with(("a-0", {"framework": "torchft"}), ("b-0", {"framework": "torchrun"}))
    assert refusal(run) == "no standby is left"
    assert refusal(run, "b") == (
        "this run cannot migrate: need a standby and the framework torchft, was no standby and "
        "torchrun"
    )
    assert refusal(run, "aa") == "no group is called 'aa'; did you mean a?"
    run.report("a-0", state="draining")
    assert refusal(run) == "group a is not training"


def test_a_standby_with_an_unknown_rack_shares_no_rack():
    run = run_with(("a-0", {}), ("s-0", STANDBY), ("t-0", {**STANDBY, "rack": "r1"}))
    assert joined(run) == ["s-0"]


def test_a_standby_just_within_the_timeout_is_used():
    run = run_with(("s-0", STANDBY))
    run.tick(10.0)
    run.feed(hello("a-0"))
    assert joined(run) == ["s-0"]


def test_a_standby_with_a_knob_command_in_flight_is_used():
    run = run_with(("a-0", {}), ("s-0", STANDBY))
    sent = of(Issue, run.ask(ChangeKnob(knob="lr", value=0.5)))
    assert [issue.command.worker for issue in sent] == ["a-0", "s-0"]
    assert joined(run) == ["s-0"]


def test_a_standby_with_a_withdrawn_drain_is_not_used_but_can_be_drained():
    run = run_with(("a-0", {}), ("s-0", STANDBY))
    run.ask(DrainGroup(group="s"))
    run.want(StopActions())
    run.want(ResumeActions())
    assert refusal(run).startswith("no standby fits a")
    assert only(Verdict, run.ask(DrainGroup(group="s"))).granted


def test_two_migrations_advance_in_one_tick():
    run = run_with(("a-0", {}), ("b-0", {}), ("s-0", STANDBY), ("t-0", STANDBY))
    for group in "ab":
        for issue in of(Issue, run.ask(Migrate(group=group))):
            run.ack(issue.command)
    run.feed(telemetry("s-0"))
    run.feed(telemetry("t-0"))
    drains = of(Issue, run.tick())
    assert [issue.command.worker for issue in drains] == ["a-0", "b-0"]
