"""People's requests: their sender, session and id."""

import asyncio
import logging
import math

import msgspec
import pytest

from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.floor.errors import MessageError
from torchloom_core.live.weaver import operator_service as service_module
from torchloom_core.live.weaver.operator_service import OperatorService
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.decisions import Reply
from torchloom_core.wire.operator import Answer, KnobTable, Page
from torchloom_core.wire.requests import (
    Annotate,
    Approve,
    Deny,
    ForgetKnob,
    Propose,
    ReleaseControl,
    ResumeActions,
    StopActions,
    TakeControl,
)

NAMED = "a name of at most 64 letters, digits, - and _"
OF_KNOB = "a name of letters, digits, - and _, and dots between them"


@pytest.fixture
def requests():
    return []


@pytest.fixture
def service(requests):
    """A service whose kernel grants everything."""

    def enter(request):
        requests.append(request)
        made.reply(Reply(request=request.id, ok=True, text=""))

    made = OperatorService(1, enter, *2 * [None])
    return made


async def test_a_request_names_its_sender_and_so_does_the_log(service, requests, caplog):
    caplog.set_level(logging.INFO)
    await service.verbs["actions.stop"](b"", "alice")
    await service.verbs["propose"](b'{"action": {"kind": "drain", "group": "g1"}}', "bob")
    assert [request.by for request in requests] == ["alice", "bob"]
    assert [record.getMessage() for record in caplog.records] == [
        "request: r1.1 alice: stop_actions",
        "request: r1.2 bob requests drain group g1",
    ]


async def test_two_people_may_call_their_requests_alike(service, requests):
    for person in ("alice", "bob", "bob"):
        await service.verbs["approve"](b'{"proposal": "p1.1", "id": "1"}', person)
    alices, bobs, again = (request.sent_as for request in requests)
    assert alices != bobs
    assert bobs == again
    await service.verbs["approve"](b'{"proposal": "p1.1"}', "bob")
    assert requests[-1].sent_as == ""


PAUSE = '"action": {"kind": "pause"}'


@pytest.mark.parametrize(
    ("verb", "body", "want", "called"),
    [
        (
            "knob.set",
            '{"knob": "lr", "value": 0.1, "worker": "a-0", "sure": true, "id": "x"}',
            Propose(action=ChangeKnob(knob="lr", value=0.1, worker="a-0"), sure=True),
            "x",
        ),
        (
            "knob.set",
            '{"knob": "lr", "value": 0.1}',
            Propose(action=ChangeKnob(knob="lr", value=0.1)),
            "",
        ),
        (
            "knob.set",
            '{"knob": "lr", "value": 0.1, "also": {"mode": "bf16"}, "guard": {"metric": "loss"}}',
            Propose(
                action=ChangeKnobs(values={"lr": 0.1, "mode": "bf16"}, guard=Guard(metric="loss"))
            ),
            "",
        ),
        (
            "knob.unset",
            '{"knob": "lr", "worker": "a-0", "id": "x"}',
            ForgetKnob(knob="lr", worker="a-0"),
            "x",
        ),
        (
            "propose",
            f'{{{PAUSE}, "sure": true, "id": "x"}}',
            Propose(action=PauseRun(), sure=True),
            "x",
        ),
        ("propose", f"{{{PAUSE}}}", Propose(action=PauseRun()), ""),
        ("approve", '{"proposal": "p1.1", "id": "x"}', Approve(proposal="p1.1"), "x"),
        (
            "deny",
            '{"proposal": "p1.1", "reason": "no", "id": "x"}',
            Deny(proposal="p1.1", reason="no"),
            "x",
        ),
        ("actions.stop", "", StopActions(), ""),
        ("actions.resume", "", ResumeActions(), ""),
    ],
)
async def test_each_verb_is_one_request_to_the_kernel(service, requests, verb, body, want, called):
    await service.verbs[verb](body.encode(), "alice")
    (request,) = requests
    assert (request.id, request.want, request.by) == ("r1.1", want, "alice")
    assert bool(request.sent_as) == bool(called)
    assert request.sent_as.endswith(called)


@pytest.mark.parametrize(
    "verb", ["status", "knobs", "knob.set", "knob.unset", "propose", "approve", "deny"]
)
@pytest.mark.parametrize("body", [b"{", b"7", b'{"knob": "\xff"}'])
async def test_a_request_that_cannot_be_read_is_one_line_that_names_its_verb(
    service, requests, verb, body
):
    with pytest.raises(MessageError, match=f"^{verb}: .") as raised:
        await service.verbs[verb](body, "alice")
    assert "\n" not in str(raised.value)
    assert not requests


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("knob.set", '{"knob": "lr", "value": 0.1, "workers": "a-0"}'),
        ("knob.unset", '{"knob": "lr", "workers": "a-0"}'),
        ("propose", f'{{{PAUSE}, "shure": true}}'),
        ("approve", '{"proposal": "p1.1", "sure": true}'),
        ("status", '{"behind": "a-0"}'),
    ],
)
async def test_a_field_that_a_verb_does_not_have_is_refused_and_not_passed_over(
    service, requests, verb, body
):
    with pytest.raises(MessageError, match=f"^{verb}: Object contains unknown field "):
        await service.verbs[verb](body.encode(), "alice")
    assert not requests


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ('"worker": "a-0", "also": {"mode": "bf16"}', "need no worker, was 'a-0'"),
        ('"worker": "a-0", "guard": {"metric": "loss"}', "need no worker, was 'a-0'"),
        ('"also": {"lr": 0.2}', "need each knob once, was 'lr' twice"),
        ('"guard": {"metric": "loss", "band": -1}', r"> 0.0 - at `\$.guard.band`"),
        ('"guard": {"metric": "loss", "window_s": 3601}', r"<= 3600.0 - at `\$.guard.window_s`"),
    ],
)
async def test_knobs_that_cannot_be_set_together_are_refused(service, requests, more, why):
    with pytest.raises(MessageError, match=why):
        await service.verbs["knob.set"](f'{{"knob": "lr", "value": 0.1, {more}}}'.encode(), "alice")
    assert not requests


async def test_the_kernels_answer_goes_to_the_sender_once():
    requests = []
    service = OperatorService(1, requests.append, *2 * [None])
    answers = [asyncio.create_task(service.verbs["actions.stop"](b"", name)) for name in "ab"]
    await asyncio.sleep(0)  # both have sent a request
    first, second = requests
    service.reply(Reply(request=second.id, ok=False, text="no", ids=("c1.1",)))
    service.reply(Reply(request=first.id, ok=True, text="yes"))
    service.reply(Reply(request=first.id, ok=False, text="twice"))
    service.reply(Reply(request="r9.9", ok=False, text="no request"))
    text = [msgspec.json.decode(await answer, type=Answer) for answer in answers]
    assert text == [
        Answer(ok=True, text="yes", ids=()),
        Answer(ok=False, text="no", ids=("c1.1",)),
    ]


async def test_the_kill_switch_is_answered_while_the_broker_stores_nothing(monkeypatch):
    monkeypatch.setattr(service_module, "_DURABLE_S", math.inf)

    def enter(request):
        service.reply(Reply(request=request.id, ok=True, text=""))

    service = OperatorService(1, enter, *2 * [None], asyncio.Event().wait)
    for verb in ("actions.stop", "actions.resume"):
        assert msgspec.json.decode(await service.verbs[verb](b"", "alice"), type=Answer).ok
    noting = asyncio.create_task(service.verbs["annotate"](b'{"text": "slow"}', "alice"))
    await asyncio.sleep(0)
    assert not noting.done()
    noting.cancel()


async def test_a_standby_knows_what_was_answered(monkeypatch):
    monkeypatch.setattr(service_module, "_DURABLE_S", 0.0)
    requests, stored = [], asyncio.Event()
    service = OperatorService(1, requests.append, *2 * [None], stored.wait, lambda: False)
    answer = asyncio.create_task(service.verbs["annotate"](b'{"text": "slow"}', "alice"))
    await asyncio.sleep(0)  # the request is sent
    service.reply(Reply(request=requests[0].id, ok=True, text="yes"))
    assert not (await asyncio.wait({answer}, timeout=0.05))[0]
    stored.set()
    assert msgspec.json.decode(await answer, type=Answer).text == "yes"


async def test_a_request_without_an_answer_times_out(monkeypatch):
    monkeypatch.setattr(service_module, "_PATIENCE_S", 0.01)
    requests = []
    service = OperatorService(1, requests.append, *2 * [None])
    with pytest.raises(TimeoutError):
        await service.verbs["actions.stop"](b"", "alice")
    service.reply(Reply(request=requests[0].id, ok=True, text="too late"))


async def test_reading_verbs_are_answered_page_by_page():
    pages = []

    def page(after):
        pages.append(after)
        return KnobTable(specs=(), desired=(), values={})

    service = OperatorService(1, lambda request: None, page, page)
    for verb in ("status", "knobs"):
        await service.verbs[verb](b"", "alice")
        await service.verbs[verb](b'{"after": "a-0"}', "alice")
    assert pages == 2 * [Page(), Page(after="a-0")]


@pytest.mark.parametrize(
    ("verb", "body", "want"),
    [
        ("knob.unset", '{"knob": "lr", ', ForgetKnob(knob="lr")),
        ("propose", '{"action": {"kind": "pause"}, ', Propose(action=PauseRun())),
        ("approve", '{"proposal": "p1.1", ', Approve(proposal="p1.1")),
        ("actions.stop", "{", StopActions()),
        ("actions.resume", "{", ResumeActions()),
        ("annotate", '{"text": "new data", ', Annotate(text="new data")),
        ("control.take", '{"lease_s": 30, ', TakeControl(lease_s=30.0)),
        ("control.release", "{", ReleaseControl()),
    ],
)
async def test_a_request_names_the_session_of_its_page(service, requests, verb, body, want):
    await service.verbs[verb](f'{body}"session": "ann.3f2a"}}'.encode(), "operator")
    assert [(request.want, request.session, request.by) for request in requests] == [
        (want, "ann.3f2a", "operator")
    ]
    with pytest.raises(MessageError):
        await service.verbs["control.take"](b'{"session": "ann <b>"}', "operator")


@pytest.mark.parametrize(
    ("verb", "body", "text"),
    [
        ("annotate", {"text": "x" * 2001}, "need at most 2000 characters in text"),
        ("knob.set", {"knob": "l r", "value": 1}, f"need {OF_KNOB} in knob"),
        ("knob.unset", {"knob": "l" * 65}, "need at most 64 characters in knob"),
        ("knob.set", {"knob": "lr", "value": 1, "worker": "g 0"}, f"need {NAMED} in worker"),
        (
            "propose",
            {"action": {"kind": "preview", "values": {"l r": 1}}},
            f"need {OF_KNOB} in action.values",
        ),
    ],
)
async def test_a_name_or_a_text_that_is_none_is_one_clear_sentence(service, verb, body, text):
    with pytest.raises(MessageError) as caught:
        await service.verbs[verb](msgspec.json.encode(body), "operator")
    assert str(caught.value) == f"{verb}: {text}"


async def test_the_kill_switch_works_with_any_body(service, requests):
    for body in (b"", b"please", b'{"session": 7}', b'{"session": "ann", "now": true}'):
        await service.verbs["actions.stop"](body, "alice")
    assert [request.want for request in requests] == 4 * [StopActions()]
