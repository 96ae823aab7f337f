"""A new job trains with its own knobs, and what was set before waits; a restart inherits."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs
from torchloom_core.wire.events import Issue, KnobDesired, Notice, Proposed, Recovered
from torchloom_core.wire.messages import Exit, KnobSpec, SetKnob, WriteLog
from torchloom_core.wire.requests import ForgetKnob

FENCED = KnobSpec(name="lr", kind="float", low=0.0, high=1.0, fence="run")
ALONE = KnobSpec(name="verbose", kind="int")
OBEYS = ("drain", "fenced_change", "set_knob", "tell")


def says_hello(worker, launch="first", incarnation=1, **fields):
    own = {"knobs": (FENCED, ALONE), "values": {"lr": 0.1, "verbose": 0}, "actuators": OBEYS}
    return hello(worker, launch=launch, incarnation=incarnation, **(own | fields))


@pytest.fixture
def run():
    """A run of two ranks whose fenced lr and worker's own verbose were set by a person."""
    run = Run(make_kernel())
    for worker in ("a-0", "a-1"):
        run.feed(says_hello(worker))
    for action in (ChangeKnobs(values={"lr": 0.2}), ChangeKnob(knob="verbose", value=3)):
        for issue in of(Issue, run.ask(action)):
            run.ack(issue.command, step=7)
    return run


def end(run):
    for worker in ("a-0", "a-1"):
        run.feed(Exit(run="run", worker=worker, incarnation=1, status=-15, expected=True))
    run.tick()


def begin(run, launch, **fields):
    """Have both ranks come as another life; return the commands that follow."""
    outputs = [
        output
        for worker in ("a-0", "a-1")
        for output in run.feed(says_hello(worker, launch, 2, **fields))
    ]
    return [i.command for i in of(Issue, [*outputs, *run.tick()])]


def told(commands, operation):
    return [command.do for command in commands if isinstance(command.do, operation)]


def test_a_new_job_is_not_given_what_was_set_before_and_all_are_told_how_to_take_it(run):
    end(run)
    commands = begin(run, "second", resumes=False)
    (said,) = told(commands, WriteLog)
    assert len(commands) == 1  # nothing is set
    notice = [n for n in run.all(Notice) if n.kind == "new_job"]
    assert [n.text for n in notice] == [said.text]
    for part in ("lr = 0.2 (set at", "verbose = 3 (set at", "knob take", "knob drop"):
        assert part in said.text
    waiting = run.kernel.run.desired.waiting
    assert {(wish.knob, wish.value) for wish in waiting} == {("lr", 0.2), ("verbose", 3)}
    assert not of(Issue, run.ask(ChangeKnob(knob="nothing", value=1)))
    # Taken one by one, as any knob is set.
    assert (
        len(
            told(
                [i.command for i in of(Issue, run.ask(ChangeKnob(knob="verbose", value=3)))],
                SetKnob,
            )
        )
        == 2
    )
    assert [wish.knob for wish in run.kernel.run.desired.waiting] == ["lr"]


def test_what_waits_still_waits_for_the_next_weaver(run):
    end(run)
    begin(run, "second", resumes=False)
    control = run.kernel.control()
    another = Run(make_kernel())
    another.feed(Recovered(epoch=2, control=control))
    assert not of(Issue, another.feed(says_hello("a-0", "second", 2, resumes=False)))
    assert not of(Proposed, another.tick())
    assert len(another.kernel.run.desired.waiting) == 2


def test_a_restart_by_the_same_launcher_inherits_and_says_so(run):
    end(run)
    commands = begin(run, "first", resumes=False)
    assert {operation.value for operation in told(commands, SetKnob)} == {3}
    for command in commands:
        run.ack(command, step=1)
    wanted = [n.text for n in run.all(Notice) if n.kind == "wanted"]
    assert any(text.startswith("restored after the restart: lr = 0.2 (set at ") for text in wanted)
    assert any(isinstance(c.do, WriteLog) and "lr = 0.2" in c.do.text for c in run.commands())


def test_a_requeued_job_inherits_and_one_whose_first_step_tells_is_waited_for(run):
    end(run)
    assert not begin(run, "second", resumes=None)
    assert run.kernel.run.desired.waiting == []
    assert told(begin(run, "second", resumes=True), SetKnob)
    assert run.kernel.run.desired.waiting == []


def test_a_first_step_of_no_checkpoint_makes_a_new_job(run):
    end(run)
    assert not begin(run, "second", resumes=None)
    run.ask(ChangeKnob(knob="verbose", value=5))  # wanted of this very job
    begin(run, "second", resumes=False)
    assert [wish.knob for wish in run.kernel.run.desired.waiting] == ["lr"]


def test_whoever_joins_a_run_that_goes_on_inherits_under_any_launch(run):
    run.exit("a-1")
    (issue,) = of(Issue, run.feed(says_hello("b-0", "another", resumes=False)))
    assert issue.command.do == SetKnob(knob="verbose", value=3)
    assert not [n for n in run.all(Notice) if n.kind == "new_job"]


def test_a_weaver_that_took_over_waits_for_those_that_train_before_it_calls_a_job_new(run):
    another = Run(make_kernel())
    another.feed(Recovered(epoch=2, control=run.kernel.control()))
    assert not of(Issue, another.feed(says_hello("b-0", "another", resumes=False)))
    another.feed(says_hello("a-0"))
    assert told([i.command for i in of(Issue, another.tick())], SetKnob)
    assert another.kernel.run.desired.waiting == []


def test_dropping_what_waits_forgets_it_for_good(run):
    end(run)
    begin(run, "second", resumes=False)
    run.want(ForgetKnob(knob="lr"))
    assert KnobDesired(knob="lr", value=None) in run.all(KnobDesired)
    assert [wish.knob for wish in run.kernel.run.desired.waiting] == ["verbose"]
    assert only(Recovered, [Recovered(epoch=2, control=run.kernel.control())]).control.desired


def test_a_life_that_names_another_launch_makes_nothing_wait(run):
    run.feed(says_hello("a-0", "forged", resumes=False))
    run.tick()
    assert run.kernel.run.desired.waiting == []
