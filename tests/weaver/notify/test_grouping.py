"""A person gets one message for many events of one cause, and a bounded number an hour."""

import pytest

from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.config.loading import parse
from torchloom_core.config.notify import Notify
from torchloom_core.floor.errors import ConfigError
from torchloom_core.live.weaver.notify.alarms import Alarm, alarms_of
from torchloom_core.live.weaver.notify.grouping import Groups
from torchloom_core.wire.decisions import Notice, Outcome, PolicyFailed, Verdict
from torchloom_core.wire.events import Tick
from torchloom_core.wire.requests import Request, StopActions

CORDON = CordonNode(node="n1")

PLACE = "need env:NAME or file:PATH, where the secret is"


def groups(**settings):
    return Groups(Notify(**settings), "run", "n1.chat")


def fault(number=0, cause="fault"):
    return Alarm("fault", cause, f"g{number} exited")


def test_events_of_one_cause_become_one_message_and_later_ones_wait():
    own = groups(group_s=10, repeat_s=100)
    for number in range(25):
        own.take(fault(number), float(number) / 10)
    assert own.next_due(9.9) is None
    message = own.next_due(10.0)
    assert (message.count, len(message.lines), message.since_s) == (25, 10, 0.0)
    assert message.text.endswith("and 15 more")
    own.take(fault(30), 12.0)
    assert own.next_due(109.9) is None
    assert own.next_due(110.0).count == 1


def test_what_is_over_the_rate_waits_and_is_one_message():
    own = groups(group_s=0, per_hour=2)
    for number in range(5):
        own.take(fault(number, f"cause {number}"), 0.0)
    assert own.next_due(0.0).cause == "cause 0"
    rest = own.next_due(0.0)
    assert (rest.cause, rest.count) == ("several causes", 4)
    own.take(fault(9, "cause 9"), 1.0)
    assert own.next_due(3599.0) is None
    assert own.next_due(3600.0).cause == "cause 9"


def test_what_waits_is_bounded():
    own = groups()
    for number in range(10_000):
        own.take(fault(number, f"cause {number}"), 0.0)
    assert len(own) == 51


def test_an_event_that_is_not_wanted_is_left_out():
    own = groups(events=("alert",))
    own.take(fault(), 0.0)
    assert own.next_due(1e9) is None


@pytest.mark.parametrize(
    ("output", "event"),
    [
        (Outcome(verdict="p1", policy="hot", action=Alert(worker="w", text="92 C"), result="done",
                 detail="", took_s=0.0), "alert"),
        (Outcome(verdict="p1", policy="x", action=CORDON, result="undone", detail="no",
                 took_s=0.0), "failed_action"),
        (Outcome(verdict="p1", policy="x", action=CORDON, result="done", detail="", took_s=0.0),
         None),
        (Verdict(proposal="p1", policy="x", action=CORDON, granted=False, rule="breaker",
                 reason="3 failed", net_gpu_s=1.0), "breaker"),
        (PolicyFailed(policy="x", rule="raised", detail="bad"), "quarantine"),
        (Notice(kind="crash_loop", text="g0-0"), "crash_loop"),
        (Notice(kind="fault", text="g0-0"), "fault"),
        (Notice(kind="effector", text="notify.chat failed"), None),
    ],
)  # fmt: skip
def test_alarms_are_what_a_person_should_act_on(output, event):
    assert [alarm.event for alarm in alarms_of(Tick(), (output,))] == [event] * (event is not None)


def test_the_kill_switch_is_an_alarm():
    (alarm,) = alarms_of(Request(id="r1", want=StopActions(), by="alice"), ())
    assert alarm == ("kill_switch", "kill_switch", "alice stopped all actions")


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("[notify.a]\nurl = 'x'", "need kind, one of webhook, slack, mail, was None"),
        ("[notify.a]\nkind = 'slack'\nurl = 'https://h/s3cret'", "need env:NAME or file:PATH"),
        (
            "[notify.a]\nkind = 'webhook'\nurl = 'https://h'\ntoken = 's3cret'",
            "need env:NAME or file:PATH",
        ),
        (
            "[notify.a]\nkind = 'mail'\nserver = 'h:25'\nsender = 'a@b'\nto = ['c@d']\n"
            "user = 'u'\npassword = 'env:P'\ntls = 'none'",
            "need tls with a password",
        ),
    ],
)
def test_a_mistake_in_the_config_is_one_line(table, rule):
    with pytest.raises(ConfigError) as caught:
        parse(table)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
