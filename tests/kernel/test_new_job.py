"""A new job has its own knob values, earlier ones wait; a restart gets the earlier ones."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, telemetry
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs
from torchloom_core.wire.decisions import Issue, Judged, KnobDesired, Notice, Outcome, Proposed
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Exit, KnobSpec
from torchloom_core.wire.operations import FencedChange, SetKnob, WriteLog
from torchloom_core.wire.requests import ForgetKnob

FENCED = KnobSpec(name="lr", kind="float", low=0.0, high=1.0, fence="run")
ALONE = KnobSpec(name="verbose", kind="int")
OBEYS = ("drain", "fenced_change", "set_knob", "write_log")


def rank_hello(worker, launch="first", incarnation=1, **fields):
    own = {"knobs": (FENCED, ALONE), "values": {"lr": 0.1, "verbose": 0}, "actuators": OBEYS}
    return hello(worker, launch=launch, incarnation=incarnation, **(own | fields))


@pytest.fixture
def run():
    """A run of two ranks with a run-fenced lr and a worker-fenced verbose, set by a person."""
    run = Run(make_kernel())
    for worker in ("a-0", "a-1"):
        run.feed(rank_hello(worker))
    for action in (ChangeKnobs(values={"lr": 0.2}), ChangeKnob(knob="verbose", value=3)):
        for issue in of(Issue, run.ask(action)):
            run.ack(issue.command, step=7)
    return run


def end(run):
    for worker in ("a-0", "a-1"):
        run.feed(Exit(run="run", worker=worker, incarnation=1, status=-15, expected=True))
    run.tick()


def begin(run, launch, **fields):
    """Register both ranks as another incarnation; return the commands that follow."""
    outputs = [
        output
        for worker in ("a-0", "a-1")
        for output in run.feed(rank_hello(worker, launch, 2, **fields))
    ]
    return [i.command for i in of(Issue, [*outputs, *run.tick()])]


def sent(commands, operation):
    return [command.do for command in commands if isinstance(command.do, operation)]


def test_a_new_job_does_not_get_earlier_values_and_the_notice_has_the_commands(run):
    end(run)
    commands = begin(run, "second", resumes=False)
    (log,) = sent(commands, WriteLog)
    assert len(commands) == 1  # nothing is set
    notice = [n for n in run.all(Notice) if n.kind == "new_job"]
    assert [n.text for n in notice] == [log.text]
    for part in ("lr = 0.2 (set at", "verbose = 3 (set at", "knob take", "knob drop"):
        assert part in log.text
    waiting = run.kernel.run.desired.waiting
    assert {(one.knob, one.value) for one in waiting} == {("lr", 0.2), ("verbose", 3)}
    assert not of(Issue, run.ask(ChangeKnob(knob="nothing", value=1)))
    # Taken one by one, as any knob is set.
    assert (
        len(
            sent(
                [i.command for i in of(Issue, run.ask(ChangeKnob(knob="verbose", value=3)))],
                SetKnob,
            )
        )
        == 2
    )
    assert [one.knob for one in run.kernel.run.desired.waiting] == ["lr"]


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_job_makes_no_change_that_was_asked_of_the_one_before(run, forgets, is_new):
    if forgets:
        for knob in ("lr", "verbose"):
            run.want(ForgetKnob(knob=knob))
    run.ask(ChangeKnobs(values={"lr": 0.3}))
    run.ask(PauseRun())  # waits for the one before
    end(run)
    commands = begin(run, "second", resumes=not is_new)
    assert bool(sent(commands, FencedChange)) != is_new
    ended = [one for one in run.all(Outcome) if one.detail == "a new job has begun"]
    assert len(ended) == is_new


def test_waiting_values_wait_after_a_restart_of_the_weaver(run):
    end(run)
    begin(run, "second", resumes=False)
    control = run.kernel.control()
    another = Run(make_kernel())
    another.feed(Recovered(epoch=2, control=control))
    assert not of(Issue, another.feed(rank_hello("a-0", "second", 2, resumes=False)))
    assert not of(Proposed, another.tick())
    assert len(another.kernel.run.desired.waiting) == 2


def test_a_restart_by_the_same_launcher_gets_the_values_and_reports_it(run):
    end(run)
    commands = begin(run, "first", resumes=False)
    assert {operation.value for operation in sent(commands, SetKnob)} == {3}
    for command in commands:
        run.ack(command, step=1)
    wanted = [n.text for n in run.all(Notice) if n.kind == "wanted"]
    assert any(text.startswith("restored after the restart: lr = 0.2 (set at ") for text in wanted)
    assert any(isinstance(c.do, WriteLog) and "lr = 0.2" in c.do.text for c in run.commands())


def test_a_requeued_job_gets_the_values_and_an_undecided_one_waits(run):
    end(run)
    assert not begin(run, "second", resumes=None)
    assert run.kernel.run.desired.waiting == []
    assert sent(begin(run, "second", resumes=True), SetKnob)
    assert run.kernel.run.desired.waiting == []


def test_a_first_step_without_a_checkpoint_makes_a_new_job(run):
    end(run)
    assert not begin(run, "second", resumes=None)
    run.ask(ChangeKnob(knob="verbose", value=5))  # desired in this job
    begin(run, "second", resumes=False)
    assert [one.knob for one in run.kernel.run.desired.waiting] == ["lr"]


def test_a_worker_that_joins_a_running_job_gets_the_values(run):
    run.exit("a-1")
    (issue,) = of(Issue, run.feed(rank_hello("b-0", "another", resumes=False)))
    assert issue.command.do == SetKnob(knob="verbose", value=3)
    assert not [n for n in run.all(Notice) if n.kind == "new_job"]


def test_a_successor_waits_for_training_workers_before_it_declares_a_new_job(run):
    another = Run(make_kernel())
    another.feed(Recovered(epoch=2, control=run.kernel.control()))
    assert not of(Issue, another.feed(rank_hello("b-0", "another", resumes=False)))
    another.feed(rank_hello("a-0"))
    assert sent([i.command for i in of(Issue, another.tick())], SetKnob)
    assert another.kernel.run.desired.waiting == []


def test_dropped_waiting_values_stay_dropped(run):
    end(run)
    begin(run, "second", resumes=False)
    run.want(ForgetKnob(knob="lr"))
    assert KnobDesired(knob="lr", value=None) in run.all(KnobDesired)
    assert [one.knob for one in run.kernel.run.desired.waiting] == ["verbose"]
    assert only(Recovered, [Recovered(epoch=2, control=run.kernel.control())]).control.desired


def test_an_incarnation_with_another_launch_makes_no_value_wait(run):
    run.feed(rank_hello("a-0", "forged", resumes=False))
    run.tick()
    assert run.kernel.run.desired.waiting == []


def test_a_launch_that_is_decided_late_ends_what_was_asked_of_the_job_before(run):
    run.want(ForgetKnob(knob="lr"))
    run.want(ForgetKnob(knob="verbose"))
    run.ask(ChangeKnobs(values={"lr": 0.3}))
    run.ask(PauseRun())
    end(run)
    begin(run, "second", state="joining")
    begin(run, "second", resumes=False)
    ended = [one for one in run.all(Outcome) if one.detail == "a new job has begun"]
    assert [one.action for one in ended] == [PauseRun()]


def test_a_change_of_the_job_before_is_not_rolled_back_in_a_new_job(run):
    for index in range(20):
        for worker in ("a-0", "a-1"):
            run.feed(telemetry(worker, {"loss": 2.0 + 0.01 * (index % 2)}))
        run.tick()
    for issue in of(Issue, run.ask(ChangeKnobs(values={"lr": 0.3}))):
        run.ack(issue.command, step=8)
    assert run.kernel.run.guards.watches
    end(run)
    begin(run, "second", resumes=False)
    assert not run.kernel.run.guards.watches
    assert "a new job has begun" in [one.text for one in run.all(Judged)]
