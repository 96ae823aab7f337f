"""Actions are stopped: what was taken back stays open until it is known what became of it."""

from tests.kernel.runs import Run, make_kernel, of, only, three_groups
from torchloom_core.weaver.recovery import Inheritance
from torchloom_core.wire.actions import ChangeKnob, Migrate
from torchloom_core.wire.events import CommandLife, Issue, Outcome, Recall
from torchloom_core.wire.messages import SetKnob
from torchloom_core.wire.plans import RECALLED
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
    taken = [recall.command for recall in of(Recall, outputs)]
    assert taken == [command.id for command in run.commands()[1:]]
    assert not of(CommandLife, outputs)
    assert only(Outcome, outputs).result == "undone"
    assert len(run.kernel.commands.flights) == 3


def test_a_command_that_its_sidecar_had_already_is_booked_as_the_worker_says():
    run = set_lr()
    stop(run)
    command = run.commands()[1]
    assert only(CommandLife, run.ack(command, "delivered")).status == "delivered"
    life = only(CommandLife, run.ack(command, "applied", step=7))
    assert (life.status, life.step) == ("applied", 7)
    assert run.kernel.fleet.knobs[1]["lr"] == 0.5


def test_a_command_that_nobody_hears_of_ends_at_its_deadline():
    run = set_lr()
    stop(run)
    ended = of(CommandLife, run.tick(66.0))
    assert [life.status for life in ended] == ["expired"] * 3
    assert not run.kernel.commands.flights


def test_a_knob_that_was_taken_back_is_sent_anew_when_actions_are_resumed():
    run = set_lr()
    stop(run)
    before = len(run.outputs)
    run.want(ResumeActions())
    commands = [issue.command for issue in of(Issue, run.outputs[before:])]
    assert [command.worker for command in commands] == ["b-0", "c-0"]  # a is still at it
    assert {command.do for command in commands} == {SetKnob(knob="lr", value=0.5)}


def test_a_successor_takes_back_again_what_was_taken_back():
    run = set_lr()
    stop(run)
    recovered = Inheritance(run.stored, "bucket").recovered(2)
    assert [f.status for f in recovered.control.flights] == ["delivered", RECALLED, RECALLED]
    successor = make_kernel()
    outputs = successor.step(recovered, run.now_ns)
    assert [i.command.id for i in of(Issue, outputs)] == [run.commands()[0].id]
    assert [r.command for r in of(Recall, outputs)] == [c.id for c in run.commands()[1:]]


def test_a_migration_that_was_called_off_drains_nobody():
    run = three_groups(make_kernel())
    run.ask(Migrate(group="a"))
    stop(run)
    run.ack(run.commands()[0], "applied")  # the stand-by had been told to join
    run.hear("s-0", state="training")
    assert len(run.commands()) == 1


def test_who_throws_and_releases_the_kill_switch_is_told_so():
    run = set_lr()
    reply = run.want(StopActions())
    assert (reply.ok, reply.text) == (True, "actions are stopped; 1 under way were called off")
    assert run.all(Outcome)[-1].detail == "actions were stopped"
    reply = run.want(ResumeActions())
    assert (reply.ok, reply.text) == (True, "actions are resumed")
