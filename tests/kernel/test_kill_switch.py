"""Actions are stopped: withdrawn commands stay open until their result is known."""

from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.runs import Run, ack, make_kernel, of, only, three_groups
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.weaver.recovery import Inheritance
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import CommandStatus, Issue, Outcome, Withdrawal
from torchloom_core.wire.events import Tick, Withheld
from torchloom_core.wire.plans import WITHDRAWN
from torchloom_core.wire.requests import ResumeActions, StopActions


def set_lr() -> Run:
    """Return a run of three groups with a knob command in flight; a has acknowledged it."""
    run = three_groups(make_kernel(), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    run.ack(run.commands()[0], "delivered")
    return run


def stop(run: Run) -> list:
    before = len(run.outputs)
    run.want(StopActions())
    return run.outputs[before:]


def test_only_unacknowledged_commands_are_withdrawn_and_none_has_ended():
    run = set_lr()
    outputs = stop(run)
    taken = [one.command for one in of(Withdrawal, outputs)]
    assert taken == [command.id for command in run.commands()[1:]]
    assert not of(CommandStatus, outputs)
    assert not of(Outcome, outputs)
    assert len(run.kernel.commands.flights) == 3


def test_a_withdrawn_command_that_reached_its_worker_ends_with_its_ack():
    run = set_lr()
    stop(run)
    command = run.commands()[1]
    assert only(CommandStatus, run.ack(command, "delivered")).status == "delivered"
    status = only(CommandStatus, run.ack(command, "applied", step=7))
    assert (status.status, status.step) == ("applied", 7)
    assert run.kernel.fleet.knobs[1]["lr"] == 0.5


def test_a_command_without_an_ack_ends_at_its_deadline():
    run = set_lr()
    stop(run)
    ended = of(CommandStatus, run.tick(66.0))
    assert [status.status for status in ended] == ["expired"] * 3
    assert not run.kernel.commands.flights


@given(
    ends=st.lists(
        st.sampled_from(["applied", "failed", "lost", "withheld"]), min_size=3, max_size=3
    ),
    before=st.integers(0, 3),
    resumed=st.booleans(),
)
def test_the_acks_decide_whether_a_stopped_value_is_desired(ends, before, resumed):
    run = three_groups(make_kernel(), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    commands = run.commands()

    def answer(command, end):
        if end in ("applied", "failed"):
            run.ack(command, end)
        elif end == "withheld" and command.id in {r.command for r in run.all(Withdrawal)}:
            run.feed(Withheld(commands=(command.id,)))

    for command, end in list(zip(commands, ends, strict=True))[:before]:
        answer(command, end)
    run.want(StopActions())
    if resumed:
        run.want(ResumeActions())
    for command, end in list(zip(commands, ends, strict=True))[before:]:
        answer(command, end)
    run.tick(70.0)
    applied = ends.count("applied")
    (outcome,) = run.all(Outcome)
    assert outcome.result == {0: "undone", 3: "done"}.get(applied, "partial")
    has = [knobs["lr"] for knobs in run.kernel.fleet.knobs]
    assert has == [0.5 if end == "applied" else 0.1 for end in ends]
    wanted = run.kernel.run.desired.values("lr")
    assert wanted == ([0.5] if applied else [])
    if not resumed:
        run.want(ResumeActions())
    sent = {c.worker for c in run.commands()[3:]}
    assert sent == (
        {c.worker for c, end in zip(commands, ends, strict=True) if end != "applied"}
        if applied
        else set()
    )


def test_the_outcome_of_a_stopped_action_has_the_number_applied():
    run = set_lr()
    stop(run)
    first, second, third = run.commands()
    run.ack(first, "applied")
    run.feed(Withheld(commands=(second.id,)))
    assert not run.all(Outcome)
    outcome = only(Outcome, run.ack(third, "applied"))
    assert (outcome.result, outcome.detail) == (
        "partial",
        "actions were stopped: 2 of 3 commands were applied",
    )
    status = [status for status in run.all(CommandStatus) if status.command == second.id][-1]
    assert (status.status, status.detail) == ("expired", "withdrawn before it was sent")


def test_a_stopped_change_that_no_worker_applied_is_not_desired():
    run = set_lr()
    stop(run)
    run.want(ResumeActions())
    run.ack(run.commands()[0], "failed")
    run.tick(70.0)
    assert only(Outcome, run.outputs).result == "undone"
    assert not run.kernel.run.desired.values("lr")
    assert len(run.commands()) == 3


def test_a_value_that_is_set_again_stays_desired_after_a_stopped_change():
    run = three_groups(make_kernel(), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    stop(run)
    run.want(ResumeActions())
    run.tick()
    for issue in of(Issue, run.ask(ChangeKnob(knob="lr", value=0.5))):
        run.ack(issue.command)
    run.tick(70.0)
    assert [outcome.result for outcome in run.all(Outcome)] == ["done", "undone"]
    assert run.kernel.run.desired.values("lr") == [0.5]


def test_the_circuit_breaker_does_not_count_actions_stopped_by_a_person():
    run = three_groups(make_kernel(config="[arbiter.breaker]\nfailures = 1"))
    run.ask(Migrate(group="a"))
    stop(run)
    run.tick(70.0)
    assert only(Outcome, run.outputs).result == "undone"
    run.want(ResumeActions())
    assert not any(grant.failed for grant in run.kernel.arbiter.grants.values())


def test_a_successor_repeats_withdrawals():
    run = set_lr()
    stop(run)
    recovered = Inheritance(run.stored, "bucket").recovered(2)
    assert [f.status for f in recovered.control.flights] == ["delivered", WITHDRAWN, WITHDRAWN]
    successor = make_kernel()
    outputs = successor.step(recovered, run.now_ns)
    assert [i.command.id for i in of(Issue, outputs)] == [run.commands()[0].id]
    assert [r.command for r in of(Withdrawal, outputs)] == [c.id for c in run.commands()[1:]]
    for command in run.commands()[:2]:
        successor.step(ack(command, "applied"), run.now_ns)
    outputs = successor.step(Tick(), run.now_ns + 70 * SECOND_NS)
    assert only(Outcome, outputs).detail == "actions were stopped: 2 of 3 commands were applied"


def test_a_migration_that_was_called_off_drains_no_group():
    run = three_groups(make_kernel())
    run.ask(Migrate(group="a"))
    stop(run)
    run.ack(run.commands()[0], "applied")  # the join of the standby
    run.report("s-0", state="training")
    assert len(run.commands()) == 1


def test_the_replies_of_the_kill_switch_have_the_result():
    run = set_lr()
    reply = run.want(StopActions())
    assert (reply.ok, reply.text) == (
        True,
        "actions are stopped; 1 under way called off; "
        "1 of them end once their workers have answered",
    )
    run.tick(70.0)
    assert run.all(Outcome)[-1].detail == "actions were stopped"
    reply = run.want(ResumeActions())
    assert (reply.ok, reply.text) == (True, "actions are resumed")
