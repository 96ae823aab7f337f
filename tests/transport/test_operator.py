"""People's requests, by the command line's client and by a plain NATS client."""

import asyncio
import json

import nats
import pytest

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import soon
from torchloom_core.floor.errors import BrokerError, KnobError, RequestError
from torchloom_core.live.transport import ControlClient
from torchloom_core.live.transport.security.nats_jwt import new_seed


@pytest.fixture
async def person(broker):
    client = await ControlClient.connect(broker.url, "run", broker.credentials.operator_creds)
    yield client
    await client.close()


async def echo(body, by):
    return b"you sent " + body


async def test_a_verb_is_answered(bus, person):
    await bus.serve({"status": echo, "actions.stop": echo})
    assert await person.ask("status") == b"you sent "
    assert await person.ask("actions.stop", b"now") == b"you sent now"


async def test_the_handler_gets_the_persons_name(bus, broker, tmp_path):
    requests = []

    async def note(body, by):
        requests.append(by)
        return b""

    await bus.serve({"status": note})
    creds = tmp_path / "alice.creds"
    creds.write_text(broker.credentials.person_creds_text("alice", new_seed("user")))
    for path in (creds, broker.credentials.operator_creds, broker.credentials.weaver_creds):
        client = await ControlClient.connect(broker.url, "run", path)
        await client.ask("status")
        await client.close()
    assert requests == ["alice", "operator", "weaver"]


async def test_a_name_that_is_none_is_refused_in_one_line(bus, weaver_client):
    await bus.serve({"status": echo})
    for name in ("x" * 65, "a\u00f6"):
        subject = f"tl.ctl.run.{name}.status"
        answer = json.loads((await weaver_client.request(subject, timeout=DEADLINE_S)).data)
        assert not answer["ok"]
        assert answer["text"].startswith(
            "status: need a person's name of 1 to 64 of A-Z a-z 0-9 _ -, was "
        )


async def test_a_mistake_is_answered_in_one_line(bus, person):
    async def refuse(body, by):
        raise KnobError("knob lr: need at most 1, was 9.0")

    await bus.serve({"knob.set": refuse})
    assert json.loads(await person.ask("knob.set", b"{}")) == {
        "ok": False,
        "text": "knob lr: need at most 1, was 9.0",
        "ids": [],
    }


async def test_a_bug_is_answered_and_logged(bus, person, caplog):
    async def fail(body, by):
        raise ZeroDivisionError("by zero")

    await bus.serve({"status": fail})
    answer = json.loads(await person.ask("status"))
    assert not answer["ok"]
    assert answer["text"] == "status: the Weaver failed (ZeroDivisionError: by zero); see its log"
    assert "request status of operator failed" in caplog.text


async def test_an_answer_that_no_broker_takes_is_answered_with_its_size(bus, person):
    async def talk(body, by):
        return b" " * 2_000_000

    await bus.serve({"status": talk})
    answer = json.loads(await person.ask("status"))
    assert answer["text"] == "status: need an answer of at most 1048576 bytes, was 2000000"


async def test_the_weavers_absence_is_one_clear_line(broker, person):
    with pytest.raises(RequestError) as caught:
        await person.ask("status")
    assert str(caught.value) == (
        f"{broker.url}: no Weaver of run run answers 'status'; is it running?"
    )


@pytest.mark.parametrize("url", ["", "nats://", "nats://a:b", "nats://[::1", "nats://a\0b"])
async def test_a_url_that_is_none_is_one_clear_line(url):
    with pytest.raises(BrokerError, match="no NATS server can be reached"):
        await ControlClient.connect(url, "run")


async def test_credentials_without_their_marks_are_refused_before_anyone_looks_for_them(tmp_path):
    """nats-py would read such a file for ever."""
    creds = tmp_path / "odd.creds"
    creds.write_text("----END NATS USER JWT----\nx\n----END USER NKEY SEED----\nx\n")
    with pytest.raises(BrokerError, match="need a NATS credentials file"):
        await ControlClient.connect("nats://127.0.0.1:1", "run", creds)


async def test_a_weaver_that_hangs_is_one_clear_line(bus, broker, person):
    release = asyncio.Event()

    async def hang(body, by):
        await release.wait()
        return b""

    await bus.serve({"status": hang, "approve": hang})
    for verb, hint in (("status", ""), ("approve", ": the request may still be carried out")):
        with pytest.raises(RequestError, match=rf"within 0\.1 s{hint}$"):
            await person.ask(verb, timeout_s=0.1)
    release.set()


async def test_a_request_without_an_answer_in_time_is_sent_again_unchanged(broker, person):
    requests = []

    async def answer_the_second(message):
        requests.append(message.data)
        if len(requests) == 2:
            await message.respond(b"at last")

    client = await nats.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    await client.subscribe("tl.ctl.run.operator.propose", cb=answer_the_second)
    await settle(client)
    assert await person.ask("propose", b"{}", timeout_s=0.5, tries=2) == b"at last"
    assert requests == [b"{}"] * 2
    await client.close()


async def test_a_plain_nats_client_finds_and_calls_the_service(bus, broker):
    await bus.serve({"status": echo})
    client = await nats.connect(broker.url, user_credentials=str(broker.credentials.operator_creds))
    info = json.loads((await client.request("$SRV.INFO.torchloom", b"", timeout=DEADLINE_S)).data)
    assert [endpoint["subject"] for endpoint in info["endpoints"]] == ["tl.ctl.run.*.status"]
    assert (
        await client.request("tl.ctl.run.operator.status", b"hi", timeout=DEADLINE_S)
    ).data == b"you sent hi"
    await client.close()


async def test_a_request_without_reply_is_carried_out(bus, broker):
    requests = asyncio.Queue()

    async def stop(body, by):
        requests.put_nowait(body)
        return b""

    await bus.serve({"actions.stop": stop})
    client = await nats.connect(broker.url, user_credentials=str(broker.credentials.operator_creds))
    await client.publish("tl.ctl.run.operator.actions.stop", b"")
    assert await soon(requests.get()) == b""
    await client.close()


async def test_the_weavers_messages_arrive_in_order(bus, person, make):
    received = asyncio.Queue()
    await person.listen(lambda kind, data: received.put_nowait((kind, json.loads(data)["rank"])))
    for rank in range(100):
        bus.publish("notice", make.hello(rank=rank))
    async with asyncio.timeout(DEADLINE_S):
        assert [await received.get() for _ in range(100)] == [
            ("notice", rank) for rank in range(100)
        ]
