"""The stages of a plan, and all its outcomes."""

from typing import Any

import msgspec
import pytest

from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    ack,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
    three_groups,
)
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import (
    CommandStatus,
    Issue,
    Notice,
    Outcome,
    PolicyFailed,
    Reply,
    Verdict,
    Withdrawal,
)
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.operations import Drain, Join, Pause, SetKnob
from torchloom_core.wire.requests import Approve, Deny, Request, ResumeActions, StopActions

APPROVED_MOVES = "[arbiter.actions.migrate]\napproval = true"


@pytest.fixture
def run() -> Run:
    return three_groups(make_kernel())


def migrate(run: Run) -> Issue:
    """Start moving group a and return the join."""
    return only(Issue, run.ask(Migrate(group="a")))


def reach_drain(run: Run) -> Issue:
    """Bring the migration of group a to its drain."""
    run.ack(migrate(run).command)
    return only(Issue, run.report("s-0"))


def test_a_migration_joins_first_and_drains_once_the_standby_trains(run):
    join = migrate(run).command
    assert (join.worker, join.do) == ("s-0", Join())
    assert of(Issue, run.ack(join, "accepted")) == []
    assert of(Issue, run.ack(join)) == []
    assert of(Issue, run.tick()) == []
    drain = only(Issue, run.report("s-0")).command
    assert (drain.worker, drain.do) == ("a-0", Drain())
    run.now_ns += 3 * SECOND_NS
    outcome = only(Outcome, run.ack(drain))
    assert (outcome.result, outcome.detail) == ("done", "s-0 joined, then a drained")
    assert outcome.took_s == 5.0


@pytest.mark.parametrize("status", ["rejected", "failed", "expired"])
def test_a_join_that_is_not_applied_ends_a_migration_undone(run, status):
    outcome = only(Outcome, run.ack(migrate(run).command, status))
    assert outcome.result == "undone"
    assert Drain() not in [command.do for command in run.commands()]


def test_a_standby_that_dies_before_its_join_is_never_followed_by_a_drain(run):
    migrate(run)
    assert only(Outcome, run.exit("s-0")).result == "undone"


def test_a_standby_that_dies_before_it_trains_is_never_followed_by_a_drain(run):
    run.ack(migrate(run).command)
    outcome = only(Outcome, run.exit("s-0"))
    assert (outcome.result, outcome.detail) == ("partial", "standby s-0 ended before it trained")
    assert len(run.commands()) == 1


def test_a_standby_that_never_trains_ends_the_plan_after_the_deadline(run):
    run.ack(migrate(run).command)
    assert of(Outcome, run.tick(120.0)) == []
    outcome = only(Outcome, run.tick(1.0))
    assert outcome.detail == "standby s-0 did not train in time"
    assert len(run.commands()) == 1


def test_a_standby_that_pauses_after_the_drain_was_sent_does_not_hold_up_the_end(run):
    drain = reach_drain(run).command
    run.report("s-0", state="paused")
    assert only(Outcome, run.ack(drain)).result == "done"


def test_a_standby_that_dies_during_the_drain_does_not_change_the_outcome(run):
    drain = reach_drain(run).command
    run.exit("s-0")
    assert only(Outcome, run.ack(drain)).result == "done"


def test_a_group_at_risk_that_dies_while_the_standby_joins_is_not_drained(run):
    join = migrate(run).command
    run.exit("a-0")
    run.ack(join)
    outcome = only(Outcome, run.report("s-0"))
    assert (outcome.result, outcome.detail) == ("partial", "a-0 ended before its command was sent")


def test_a_group_at_risk_that_restarts_meanwhile_is_not_drained(run):
    run.ack(migrate(run).command)
    run.feed(hello("a-0", incarnation=2))
    assert only(Outcome, run.report("s-0")).result == "partial"
    assert len(run.commands()) == 1


def test_a_group_at_risk_that_dies_during_its_drain_makes_the_migration_partial(run):
    reach_drain(run)
    assert only(Outcome, run.exit("a-0")).result == "partial"


def test_a_partial_migration_counts_as_failed_for_the_breaker():
    scripted = ScriptedPolicy()
    config = """
        [arbiter]
        max_in_motion_share = 1
        [arbiter.breaker]
        failures = 1
        max_moved_share = 1
    """
    run = three_groups(make_kernel([active("scripted", scripted)], config))
    run.feed(hello("t-0", state="standby"))
    assert only(Outcome, run.ack(reach_drain(run).command, "failed")).result == "partial"
    scripted.next = [proposal(Migrate(group="b"))]
    verdict = only(Verdict, run.tick())
    assert verdict.reason == "need fewer than 1 failed actions in 300 s, was 1"


def test_a_completed_migration_is_no_failure():
    scripted = ScriptedPolicy()
    config = "[arbiter.breaker]\nfailures = 1\nmax_moved_share = 1"
    run = three_groups(make_kernel([active("scripted", scripted)], config))
    run.feed(hello("t-0", state="standby"))
    assert only(Outcome, run.ack(reach_drain(run).command)).result == "done"
    scripted.next = [proposal(Migrate(group="b"))]
    assert only(Verdict, run.tick()).granted


def test_an_exit_that_overtakes_the_last_ack_of_a_drain_counts_as_drained(run):
    drain = reach_drain(run).command
    outputs = run.exit("a-0", expected=True)
    assert only(CommandStatus, outputs).status == "applied"
    assert only(Outcome, outputs).result == "done"
    assert run.ack(drain) == []


def test_a_worker_that_was_killed_during_its_drain_was_not_drained(run):
    run.ask(DrainGroup(group="a"))
    run.exit("a-0")
    assert run.kernel.fleet.ending[run.kernel.fleet.row_of["a-0"]] == "killed"


def test_a_successor_ends_a_drain_at_an_exit_before_the_hello(run):
    run.ask(DrainGroup(group="a"))
    after = Run(make_kernel(), now_ns=run.now_ns)
    after.feed(Recovered(epoch=2, control=run.kernel.control()))
    assert only(CommandStatus, after.exit("a-0", expected=True)).status == "applied"
    assert only(Outcome, after.outputs).result == "done"


def test_commands_without_acks_expire_and_end_the_plan(run):
    migrate(run)
    assert run.tick(65.0) == []
    outputs = run.tick(1.0)
    assert only(CommandStatus, outputs).status == "expired"
    assert only(Outcome, outputs).result == "undone"


@pytest.mark.parametrize("stage", ["join", "joined", "drain"])
def test_the_kill_switch_ends_a_migration_at_every_stage(run, stage):
    if stage == "drain":
        reach_drain(run)
    else:
        join = migrate(run).command
        if stage == "joined":
            run.ack(join)
    before = len(run.commands())
    reply = run.want(StopActions())
    assert reply.text.startswith("actions are stopped; 1 under way called off")
    assert bool(run.all(Outcome)) == (stage == "joined")
    run.tick(70.0)
    assert only(Outcome, run.outputs).result == ("undone" if stage == "join" else "partial")
    assert len(of(Withdrawal, run.outputs)) == (0 if stage == "joined" else 1)
    run.report("s-0")
    run.tick(500.0)
    assert len(run.commands()) == before
    assert run.kernel.control().plans == () == run.kernel.control().flights


def test_the_kill_switch_leaves_a_command_that_was_delivered_to_its_worker(run):
    join = migrate(run).command
    run.ack(join, "delivered")
    run.want(StopActions())
    assert of(Withdrawal, run.outputs) == []
    assert only(CommandStatus, run.ack(join)).status == "applied"
    assert len(run.all(Outcome)) == 1


def test_nothing_is_granted_while_actions_are_stopped(run):
    run.want(StopActions())
    verdict = only(Verdict, run.ask(Migrate(group="a")))
    assert (verdict.granted, verdict.rule) == (False, "kill_switch")
    run.want(ResumeActions())
    assert only(Verdict, run.ask(Migrate(group="a"))).granted


def test_a_drained_group_counts_as_gone_before_its_telemetry_shows_it():
    run = three_groups(make_kernel(config="[arbiter]\nmin_groups = 2\nmax_in_motion_share = 1"))
    drain = only(Issue, run.ask(DrainGroup(group="a"))).command
    run.feed(telemetry("a-0", state="training"))  # sent before it drained, and late
    run.ack(drain)
    run.tick()
    verdict = only(Verdict, run.ask(DrainGroup(group="b")))
    assert (verdict.granted, verdict.rule) == (False, "quorum_minimum")


def test_a_checkpoint_of_a_group_that_cannot_save_is_refused():
    run = Run(make_kernel())
    run.feed(hello("a-0", actuators=()))
    run.feed(hello("b-0"))
    verdict = only(Verdict, run.ask(SaveCheckpoint(group="a")))
    assert verdict.reason == (
        "no training worker of a has a save function: register one with loom.on_checkpoint"
    )
    assert len(of(Issue, run.ask(SaveCheckpoint()))) == 1


def test_a_pause_is_one_command_per_training_worker(run):
    issued = of(Issue, run.ask(PauseRun()))
    assert [i.command.worker for i in issued] == ["a-0", "b-0", "c-0"]
    assert {type(i.command.do) for i in issued} == {Pause}


def test_a_plan_is_partial_if_some_workers_did_not_apply(run):
    first, *rest = of(Issue, run.ask(SaveCheckpoint()))
    for issue in rest:
        run.ack(issue.command)
    outcome = only(Outcome, run.ack(first.command, "failed"))
    assert (outcome.result, outcome.detail) == ("partial", f"{first.command.id} failed")


def test_an_ack_of_another_worker_or_incarnation_is_ignored(run):
    join = migrate(run).command
    assert run.ack(join, worker="a-0") == []
    assert run.ack(join, incarnation=2) == []
    assert run.feed(msgspec.structs.replace(ack(join, "applied"), command="c1.99")) == []
    assert len(run.kernel.commands.flights) == 1


def test_a_command_status_only_moves_forward(run):
    join = migrate(run).command
    assert only(CommandStatus, run.ack(join, "accepted")).status == "accepted"
    assert run.ack(join, "delivered") == []
    assert run.ack(join, "accepted") == []
    assert only(CommandStatus, run.ack(join)).status == "applied"


def test_a_rejection_of_an_earlier_epochs_copy_does_not_end_the_command(run):
    join = migrate(run).command
    assert run.ack(join, "rejected", epoch=0) == []
    assert only(CommandStatus, run.ack(join, "rejected")).status == "rejected"


def test_an_exit_is_reported_once_and_ends_the_incarnation(run):
    assert only(Notice, run.exit("a-0")).kind == "fault"
    assert run.exit("a-0") == []
    assert run.feed(hello("a-0")) == []
    assert run.kernel.fleet.state[0] == "gone"


def test_policies_see_a_knob_that_was_applied_at_once():
    seen = []
    policy = ScriptedPolicy()
    policy.on_tick = lambda view: seen.append(view.knob("lr")) or []
    run = three_groups(make_kernel([active("scripted", policy)]), standby=False)
    (issue,) = of(Issue, run.ask(ChangeKnob(knob="lr", value=0.5, worker="b-0")))
    assert issue.command.do == SetKnob(knob="lr", value=0.5)
    run.ack(issue.command)
    run.tick()
    assert seen == [[0.1, 0.5, 0.1]]


def test_a_person_can_approve_only_waiting_proposals():
    policy = ScriptedPolicy()
    run = three_groups(make_kernel([active("scripted", policy)], APPROVED_MOVES))
    policy.next = [proposal(Migrate(group="a"))]
    verdict = only(Verdict, run.tick())
    assert verdict.rule == "approval"
    assert not run.want(Approve(proposal="p9.9")).ok
    reply = run.want(Approve(proposal=verdict.proposal))
    assert (reply.ok, reply.text, reply.ids) == (True, "granted", (run.commands()[0].id,))
    assert not run.want(Approve(proposal=verdict.proposal)).ok


class Withdraws(ScriptedPolicy):
    """A policy whose proposals lapse once it has a reason."""

    why: Any = ""

    def lapsed(self, view, proposal):
        if isinstance(self.why, Exception):
            raise self.why
        return self.why


def waits_for_approval(policy):
    run = three_groups(make_kernel([active("scripted", policy)], APPROVED_MOVES))
    policy.next = [proposal(Migrate(group="a"))]
    waiting = only(Verdict, run.tick())
    assert waiting.rule == "approval"
    return run, waiting.proposal


@pytest.mark.parametrize("how", ["tick", "approval"])
def test_a_lapsed_proposal_is_withdrawn_with_the_reason(how):
    policy = Withdraws()
    run, waiting = waits_for_approval(policy)
    assert of(Verdict, run.tick()) == []
    policy.why = "the forecast is over"
    if how == "tick":
        verdict = only(Verdict, run.tick())
        assert (verdict.proposal, verdict.rule, verdict.reason) == (waiting, "lapsed", policy.why)
    else:
        reply = run.want(Approve(proposal=waiting))
        assert (reply.ok, reply.text) == (False, "denied by lapsed: the forecast is over")
    assert run.commands() == []
    assert run.kernel.arbiter.waiting == {}


@pytest.mark.parametrize("why", [RuntimeError("broken"), 7])
def test_a_policy_that_fails_to_judge_its_proposal_is_quarantined_and_the_person_decides(why):
    policy = Withdraws()
    run, waiting = waits_for_approval(policy)
    policy.why = why
    assert only(PolicyFailed, run.tick()).policy == "scripted"
    assert run.want(Approve(proposal=waiting)).ok


def test_a_person_denies_a_proposal_with_a_reason():
    run, waiting = waits_for_approval(ScriptedPolicy())
    outputs = run.feed(Request(id="r1", want=Deny(proposal=waiting, reason="the fan is new")))
    verdict = only(Verdict, outputs)
    assert (verdict.granted, verdict.rule) == (False, "person")
    assert verdict.reason == "denied by a person: the fan is new"
    assert only(Reply, outputs).ok
    assert not run.want(Approve(proposal=waiting)).ok
    assert not run.want(Deny(proposal=waiting)).ok


def test_an_expired_proposal_ends_with_a_verdict():
    policy = ScriptedPolicy()
    run = three_groups(make_kernel([active("scripted", policy)], APPROVED_MOVES))
    policy.next = [proposal(Migrate(group="a"), expires_s=5.0)]
    waiting = only(Verdict, run.tick())
    assert run.tick(5.0) == []
    verdict = only(Verdict, run.tick(0.1))
    assert (verdict.proposal, verdict.rule) == (waiting.proposal, "expiry")


def test_a_policys_grant_names_the_rule_net_gain():
    policy = ScriptedPolicy()
    run = three_groups(make_kernel([active("scripted", policy)]))
    policy.next = [proposal(Migrate(group="a"))]
    verdict = only(Verdict, run.tick())
    assert (verdict.rule, verdict.net_gpu_s) == ("net_gain", 100.0)


def test_a_paused_run_can_be_drained_and_counts_as_training():
    run = three_groups(make_kernel(config="[arbiter]\nmin_groups = 2"), standby=False)
    for worker in ("a-0", "b-0", "c-0"):
        run.report(worker, state="paused")
    outputs = run.ask(DrainGroup(group="a"))
    assert only(Verdict, outputs).granted
    assert only(Issue, outputs).command.worker == "a-0"
    verdict = only(Verdict, run.ask(DrainGroup(group="b")))
    assert verdict.reason == "need at least 2 groups left training, would be 1"


def test_a_dump_of_an_ended_worker_is_denied(run):
    run.exit("a-0")
    verdict = only(Verdict, run.ask(CollectDump(worker="a-0")))
    assert (verdict.rule, verdict.reason) == ("impossible", "worker a-0 has ended")
    assert only(Issue, run.ask(CollectDump(worker="b-0"))).command.worker == "b-0"


def test_the_commands_of_an_ended_worker_end_and_only_a_drain_was_applied(run):
    run.ask(ChangeKnob(knob="lr", value=0.5))
    run.ask(SaveCheckpoint())
    outputs = run.exit("a-0", expected=True)
    assert only(Notice, outputs).worker == "a-0"
    assert [
        (status.verb, status.status, status.detail) for status in of(CommandStatus, outputs)
    ] == [
        ("set_knob", "expired", "the worker has ended"),
        ("checkpoint", "expired", "the worker has ended"),
    ]


@pytest.mark.parametrize(
    ("action", "detail"),
    [
        (DrainGroup(group="a"), "a drained"),
        (ChangeKnob(knob="lr", value=0.5, worker="a-0"), "lr = 0.5 on 1 worker"),
        (ChangeKnob(knob="lr", value=0.5), "lr = 0.5 on 4 workers"),
        (SaveCheckpoint(group="a"), "saved by 1 worker"),
        (SaveCheckpoint(), "saved by 3 workers"),
    ],
)
def test_an_outcome_has_the_action_and_the_number_of_workers(run, action, detail):
    for issue in of(Issue, run.ask(action)):
        run.ack(issue.command)
    outcome = only(Outcome, run.outputs)
    assert (outcome.result, outcome.detail) == ("done", detail)


@pytest.fixture
def pairs() -> Run:
    """A migration of group a to the standbys s, of two workers each, after the join was issued.

    Both have joined and do not train yet.
    """
    run = Run(make_kernel())
    for worker in ("a-0", "a-1", "b-0", "b-1"):
        run.feed(hello(worker))
    for worker in ("s-0", "s-1"):
        run.feed(hello(worker, state="standby"))
    for issue in of(Issue, run.ask(Migrate(group="a"))):
        run.ack(issue.command)
    return run


def train(run: Run) -> list[Issue]:
    run.feed(telemetry("s-0"))
    return of(Issue, run.report("s-1"))


def test_a_migration_of_two_workers_drains_both_once_both_standbys_train(pairs):
    pairs.feed(telemetry("s-0"))
    assert of(Issue, pairs.tick()) == []
    drains = of(Issue, pairs.report("s-1"))
    assert [drain.command.worker for drain in drains] == ["a-0", "a-1"]
    for drain in drains:
        pairs.ack(drain.command)
    assert only(Outcome, pairs.outputs).detail == "s-0, s-1 joined, then a drained"


def test_an_impossible_action_is_denied_with_the_reason():
    run = Run(make_kernel())
    run.feed(hello("a-0", actuators=(), state="starting"))
    for action, reason in (
        (PauseRun(), "no worker is training"),
        (ResumeRun(), "no worker is paused"),
        (SaveCheckpoint(group="b"), "no group is called 'b'"),
        (SaveCheckpoint(group="a"), "group a is not training"),
        (SaveCheckpoint(), "no training worker has "),
    ):
        verdict = only(Verdict, run.ask(action))
        assert verdict.rule == "impossible"
        assert verdict.reason.startswith(reason)
    run.report("a-0")
    reason = only(Verdict, run.ask(SaveCheckpoint(group="a"))).reason
    assert reason.startswith("no training worker of a has ")


@pytest.fixture
def called() -> tuple[Run, list[Issue]]:
    """A migration of group a to the standbys s, of two workers each, with joins in flight."""
    run = Run(make_kernel())
    for worker in ("a-0", "a-1", "b-0", "b-1"):
        run.feed(hello(worker))
    for worker in ("s-0", "s-1"):
        run.feed(hello(worker, state="standby"))
    return run, of(Issue, run.ask(Migrate(group="a")))


@pytest.mark.parametrize("how", ["rejected", "died while joining"])
def test_a_partly_joined_standby_is_drained(called, how):
    run, (first, second) = called
    run.ack(first.command)
    if how == "rejected":
        sent = run.ack(second.command, "rejected")
    else:
        run.ack(second.command)
        sent = run.exit("s-1")
    assert only(Outcome, sent).result in ("undone", "partial")
    drain = only(Issue, sent).command
    assert (drain.worker, drain.do) == ("s-0", Drain())


def test_a_completely_joined_standby_is_not_drained(pairs):
    outcome = only(Outcome, pairs.tick(after_s=200))
    assert outcome.detail == "standby s-0, s-1 did not train in time"
    assert Drain() not in [command.do for command in pairs.commands()]


def test_no_worker_is_drained_once_actions_are_stopped(called):
    run, (first, _) = called
    run.ack(first.command)
    run.want(StopActions())
    assert Drain() not in [command.do for command in run.commands()]
