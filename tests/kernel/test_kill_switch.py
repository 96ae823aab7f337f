"""Actions are stopped: what was taken back stays open until it is known what became of it."""

from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.runs import Run, ack, make_kernel, of, only, three_groups
from torchloom_core.clock import SECOND_NS
from torchloom_core.weaver.recovery import Inheritance
from torchloom_core.wire.actions import ChangeKnob, Migrate
from torchloom_core.wire.events import CommandStatus, Issue, Outcome, Tick, Withdrawal, Withheld
from torchloom_core.wire.plans import WITHDRAWN
from torchloom_core.wire.requests import ResumeActions, StopActions


def set_lr() -> Run:
    """Return a run of three groups that are being told a knob; a has heard of it."""
    run = three_groups(make_kernel(), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    run.ack(run.commands()[0], "delivered")
    return run


def stop(run: Run) -> list:
    before = len(run.outputs)
    run.want(StopActions())
    return run.outputs[before:]


def test_only_what_has_not_been_heard_of_is_taken_back_and_nothing_is_booked_yet():
    run = set_lr()
    outputs = stop(run)
    taken = [recall.command for recall in of(Withdrawal, outputs)]
    assert taken == [command.id for command in run.commands()[1:]]
    assert not of(CommandStatus, outputs)
    assert not of(Outcome, outputs)
    assert len(run.kernel.commands.flights) == 3


def test_a_command_that_its_sidecar_had_already_is_booked_as_the_worker_says():
    run = set_lr()
    stop(run)
    command = run.commands()[1]
    assert only(CommandStatus, run.ack(command, "delivered")).status == "delivered"
    life = only(CommandStatus, run.ack(command, "applied", step=7))
    assert (life.status, life.step) == ("applied", 7)
    assert run.kernel.fleet.knobs[1]["lr"] == 0.5


def test_a_command_that_nobody_hears_of_ends_at_its_deadline():
    run = set_lr()
    stop(run)
    ended = of(CommandStatus, run.tick(66.0))
    assert [life.status for life in ended] == ["expired"] * 3
    assert not run.kernel.commands.flights


@given(
    ends=st.lists(
        st.sampled_from(["applied", "failed", "lost", "withheld"]), min_size=3, max_size=3
    ),
    before=st.integers(0, 3),
    resumed=st.booleans(),
)
def test_what_was_stopped_comes_to_what_the_acks_say_and_only_then_is_it_wanted(
    ends, before, resumed
):
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
    told = {c.worker for c in run.commands()[3:]}
    assert told == (
        {c.worker for c, end in zip(commands, ends, strict=True) if end != "applied"}
        if applied
        else set()
    )


def test_an_outcome_says_how_many_had_applied_what_was_stopped():
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
    life = [life for life in run.all(CommandStatus) if life.command == second.id][-1]
    assert (life.status, life.detail) == ("expired", "withdrawn before it was sent")


def test_a_change_that_was_stopped_and_that_no_worker_applied_is_not_wanted_any_more():
    run = set_lr()
    stop(run)
    run.want(ResumeActions())
    run.ack(run.commands()[0], "failed")
    run.tick(70.0)
    assert only(Outcome, run.outputs).result == "undone"
    assert not run.kernel.run.desired.values("lr")
    assert len(run.commands()) == 3


def test_the_same_value_that_is_set_again_stays_wanted_though_the_stopped_change_is_undone():
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


def test_a_stop_by_a_person_is_no_failure_that_the_circuit_breaker_counts():
    run = three_groups(make_kernel(config="[arbiter.breaker]\nfailures = 1"))
    run.ask(Migrate(group="a"))
    stop(run)
    run.tick(70.0)
    assert only(Outcome, run.outputs).result == "undone"
    run.want(ResumeActions())
    assert not any(grant.failed for grant in run.kernel.arbiter.grants.values())


def test_a_successor_takes_back_again_what_was_taken_back():
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


def test_a_migration_that_was_called_off_drains_nobody():
    run = three_groups(make_kernel())
    run.ask(Migrate(group="a"))
    stop(run)
    run.ack(run.commands()[0], "applied")  # the standby had been told to join
    run.hear("s-0", state="training")
    assert len(run.commands()) == 1


def test_who_throws_and_releases_the_kill_switch_is_told_so():
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
