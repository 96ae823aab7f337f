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
    LeaveWheel,
    Propose,
    Request,
    ResumeActions,
    StopActions,
    TakeWheel,
)


@pytest.fixture
def run():
    run = Run(make_kernel())
    run.feed(hello("g0-0"))
    return run


def ask(run, session, want):
    return only(Reply, run.feed(Request(id="r", want=want, by="operator", session=session)))


def told(run):
    return [notice.text for notice in run.all(Notice) if notice.kind == "wheel"]


ACTING = [
    Propose(action=PauseRun()),
    Approve(proposal="p1.1"),
    Deny(proposal="p1.1"),
    ForgetKnob(knob="lr"),
    ResumeActions(),
]


@pytest.mark.parametrize("want", ACTING)
def test_a_seat_acts_only_while_it_has_the_wheel(run, want):
    assert ask(run, "ann", want).text == "ann does not have the wheel: nobody has"
    ask(run, "bob", TakeWheel())
    assert ask(run, "ann", want).text == "ann does not have the wheel: bob has"
    ask(run, "ann", TakeWheel(force=True))
    assert "wheel" not in ask(run, "ann", want).text
    assert ask(run, "bob", want).text == "bob does not have the wheel: ann has"


@pytest.mark.parametrize("want", ACTING)
def test_who_asks_without_a_seat_needs_no_wheel(run, want):
    ask(run, "ann", TakeWheel())
    assert "wheel" not in ask(run, "", want).text


def test_any_seat_may_throw_the_kill_switch(run):
    ask(run, "ann", TakeWheel())
    assert ask(run, "bob", StopActions()).ok
    assert run.kernel.execution.stopped
    assert not ask(run, "bob", ResumeActions()).ok
    assert run.kernel.execution.stopped


def test_any_seat_may_say_something_for_the_record(run):
    ask(run, "ann", TakeWheel())
    assert ask(run, "bob.3f", Annotate(text="new data from here on")).ok
    said = [notice.text for notice in run.all(Notice) if notice.kind == "annotate"]
    assert said == ["bob (operator): new data from here on"]


def test_the_wheel_is_taken_from_nobody_but_by_force(run):
    assert ask(run, "ann", TakeWheel()).ok
    refused = ask(run, "bob", TakeWheel())
    assert (refused.ok, refused.text) == (False, "ann has the wheel")
    assert ask(run, "bob", TakeWheel(force=True)).text == "bob has the wheel, taken from ann"
    assert run.kernel.wheel.holder(run.now_ns) == "bob"
    assert told(run) == ["ann has the wheel", "bob has the wheel, taken from ann"]


def test_a_lease_that_is_renewed_goes_on_and_one_that_is_not_is_over_and_told_once(run):
    for _ in range(3):
        assert ask(run, "ann", TakeWheel(lease_s=2.0)).ok
        run.tick()
    for _ in range(3):
        run.tick()
    assert run.kernel.wheel.holder(run.now_ns) == ""
    assert run.kernel.wheel.until_ns(run.now_ns) == 0
    assert told(run) == ["ann has the wheel", "ann did not renew its lease of the wheel"]
    assert ask(run, "bob", TakeWheel()).ok


def test_who_leaves_the_wheel_leaves_it_free(run):
    ask(run, "ann", TakeWheel())
    assert ask(run, "bob", LeaveWheel()).text == "bob did not have the wheel"
    assert run.kernel.wheel.holder(run.now_ns) == "ann"
    assert ask(run, "ann", LeaveWheel()).ok
    assert ask(run, "bob", TakeWheel()).ok


def test_the_wheel_is_for_seats(run):
    for want in (TakeWheel(), LeaveWheel()):
        assert ask(run, "", want).text == "the wheel is for web pages: need a session"
    assert run.kernel.wheel.holder(run.now_ns) == ""
