"""One web session has control at a time; any session may stop all actions."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, only
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.wire.decisions import Notice, Reply
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


def texts(run):
    return [notice.text for notice in run.all(Notice) if notice.kind == "control"]


ACTING = [
    Propose(action=PauseRun()),
    Approve(proposal="p1.1"),
    Deny(proposal="p1.1"),
    ForgetKnob(knob="lr"),
    ResumeActions(),
]


@pytest.mark.parametrize("want", ACTING)
def test_a_session_acts_only_while_it_has_control(run, want):
    assert ask(run, "ann", want).text == "ann does not have control, no session has"
    ask(run, "bob", TakeControl())
    assert ask(run, "ann", want).text == "ann does not have control, bob has"
    ask(run, "ann", TakeControl(force=True))
    assert "control" not in ask(run, "ann", want).text
    assert ask(run, "bob", want).text == "bob does not have control, ann has"


@pytest.mark.parametrize("want", ACTING)
def test_a_request_without_a_session_needs_no_control(run, want):
    ask(run, "ann", TakeControl())
    assert "control" not in ask(run, "", want).text


def test_any_session_may_turn_the_kill_switch_on(run):
    ask(run, "ann", TakeControl())
    assert ask(run, "bob", StopActions()).ok
    assert run.kernel.run.switch.stopped
    assert not ask(run, "bob", ResumeActions()).ok
    assert run.kernel.run.switch.stopped


def test_any_session_may_annotate_the_record(run):
    ask(run, "ann", TakeControl())
    assert ask(run, "bob.3f", Annotate(text="new data from here on")).ok
    annotations = [notice.text for notice in run.all(Notice) if notice.kind == "annotation"]
    assert annotations == ["bob (operator): new data from here on"]


def test_control_is_taken_from_another_session_only_by_force(run):
    assert ask(run, "ann", TakeControl()).ok
    refused = ask(run, "bob", TakeControl())
    assert (refused.ok, refused.text) == (False, "ann has control")
    assert ask(run, "bob", TakeControl(force=True)).text == "bob has control, taken from ann"
    assert run.kernel.requests.control_lease.holder(run.now_ns) == "bob"
    assert texts(run) == ["ann has control", "bob has control, taken from ann"]


def test_a_renewed_lease_continues_and_an_expired_one_is_reported_once(run):
    for _ in range(3):
        assert ask(run, "ann", TakeControl(lease_s=2.0)).ok
        run.tick()
    for _ in range(3):
        run.tick()
    assert run.kernel.requests.control_lease.holder(run.now_ns) == ""
    assert run.kernel.requests.control_lease.until_ns(run.now_ns) == 0
    assert texts(run) == ["ann has control", "the control lease of ann expired"]
    assert ask(run, "bob", TakeControl()).ok


def test_released_control_is_free(run):
    ask(run, "ann", TakeControl())
    assert ask(run, "bob", ReleaseControl()).text == "bob did not have control"
    assert run.kernel.requests.control_lease.holder(run.now_ns) == "ann"
    assert ask(run, "ann", ReleaseControl()).ok
    assert ask(run, "bob", TakeControl()).ok


def test_control_needs_a_session(run):
    for want in (TakeControl(), ReleaseControl()):
        assert ask(run, "", want).text == "control is for web pages: need a session"
    assert run.kernel.requests.control_lease.holder(run.now_ns) == ""
