"""One session at a web page drives at a time; whoever sits there may stop everything."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, only
from torchloom_core.wire.actions import PauseRun
from torchloom_core.wire.events import Notice, Reply
from torchloom_core.wire.requests import (
    Annotate,
    Approve,
    Deny,
    ForgetKnob,
    Propose,
    ReleaseControl,
    Request,
    ResumeActions,
    StopActions,
    TakeControl,
)


@pytest.fixture
def run():
    run = Run(make_kernel())
    run.feed(hello("g0-0"))
    return run


def ask(run, session, want):
    return only(Reply, run.feed(Request(id="r", want=want, by="operator", session=session)))


def told(run):
    return [notice.text for notice in run.all(Notice) if notice.kind == "control"]


ACTING = [
    Propose(action=PauseRun()),
    Approve(proposal="p1.1"),
    Deny(proposal="p1.1"),
    ForgetKnob(knob="lr"),
    ResumeActions(),
]


@pytest.mark.parametrize("want", ACTING)
def test_a_session_acts_only_while_it_has_the_control(run, want):
    assert ask(run, "ann", want).text == "ann does not have control, no session has"
    ask(run, "bob", TakeControl())
    assert ask(run, "ann", want).text == "ann does not have control, bob has"
    ask(run, "ann", TakeControl(force=True))
    assert "control" not in ask(run, "ann", want).text
    assert ask(run, "bob", want).text == "bob does not have control, ann has"


@pytest.mark.parametrize("want", ACTING)
def test_who_asks_without_a_session_needs_no_control(run, want):
    ask(run, "ann", TakeControl())
    assert "control" not in ask(run, "", want).text


def test_any_session_may_throw_the_kill_switch(run):
    ask(run, "ann", TakeControl())
    assert ask(run, "bob", StopActions()).ok
    assert run.kernel.execution.stopped
    assert not ask(run, "bob", ResumeActions()).ok
    assert run.kernel.execution.stopped


def test_any_session_may_say_something_for_the_record(run):
    ask(run, "ann", TakeControl())
    assert ask(run, "bob.3f", Annotate(text="new data from here on")).ok
    said = [notice.text for notice in run.all(Notice) if notice.kind == "annotation"]
    assert said == ["bob (operator): new data from here on"]


def test_the_control_is_taken_from_nobody_but_by_force(run):
    assert ask(run, "ann", TakeControl()).ok
    refused = ask(run, "bob", TakeControl())
    assert (refused.ok, refused.text) == (False, "ann has control")
    assert ask(run, "bob", TakeControl(force=True)).text == "bob has control, taken from ann"
    assert run.kernel.control_lease.holder(run.now_ns) == "bob"
    assert told(run) == ["ann has control", "bob has control, taken from ann"]


def test_a_lease_that_is_renewed_goes_on_and_one_that_is_not_is_over_and_told_once(run):
    for _ in range(3):
        assert ask(run, "ann", TakeControl(lease_s=2.0)).ok
        run.tick()
    for _ in range(3):
        run.tick()
    assert run.kernel.control_lease.holder(run.now_ns) == ""
    assert run.kernel.control_lease.until_ns(run.now_ns) == 0
    assert told(run) == ["ann has control", "the control lease of ann expired"]
    assert ask(run, "bob", TakeControl()).ok


def test_who_leaves_the_control_leaves_it_free(run):
    ask(run, "ann", TakeControl())
    assert ask(run, "bob", ReleaseControl()).text == "bob did not have control"
    assert run.kernel.control_lease.holder(run.now_ns) == "ann"
    assert ask(run, "ann", ReleaseControl()).ok
    assert ask(run, "bob", TakeControl()).ok


def test_the_control_is_for_sessions(run):
    for want in (TakeControl(), ReleaseControl()):
        assert ask(run, "", want).text == "control is for web pages: need a session"
    assert run.kernel.control_lease.holder(run.now_ns) == ""
