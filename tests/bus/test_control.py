"""People's requests, by the command line's client and by a plain NATS client."""

import asyncio
import json

import nats
import pytest

from torchloom_core.bus import ControlClient
from torchloom_core.errors import BrokerError, KnobError, RequestError


@pytest.fixture
async def person(broker):
    client = await ControlClient.connect(broker.url, "run", broker.credentials.operator_creds)
    yield client
    await client.close()


async def echo(body):
    return b"you said " + body


async def test_a_verb_is_answered(bus, person):
    await bus.serve({"status": echo, "actions.stop": echo})
    assert await person.ask("status") == b"you said "
    assert await person.ask("actions.stop", b"now") == b"you said now"


async def test_a_mistake_is_answered_in_one_line(bus, person):
    async def refuse(body):
        raise KnobError("knob lr: need at most 1, was 9.0")

    await bus.serve({"knob.set": refuse})
    assert json.loads(await person.ask("knob.set", b"{}")) == {
        "ok": False,
        "text": "knob lr: need at most 1, was 9.0",
        "ids": [],
    }


async def test_a_bug_is_answered_and_logged(bus, person, caplog):
    async def fail(body):
        raise ZeroDivisionError("by zero")

    await bus.serve({"status": fail})
    answer = json.loads(await person.ask("status"))
    assert not answer["ok"]
    assert (
        answer["text"]
        == "status: the Weaver failed (ZeroDivisionError: by zero); its log says more"
    )
    assert "request status failed" in caplog.text


async def test_the_weavers_absence_is_one_clear_line(broker, person):
    with pytest.raises(RequestError) as caught:
        await person.ask("status")
    assert str(caught.value) == (
        f"{broker.url}: no Weaver of run run answers 'status'; is it running?"
    )


async def test_a_weaver_that_hangs_is_one_clear_line(bus, broker, person):
    release = asyncio.Event()

    async def hang(body):
        await release.wait()
        return b""

    await bus.serve({"status": hang})
    with pytest.raises(RequestError, match=r"within 0\.1 s, was silence"):
        await person.ask("status", timeout_s=0.1)
    release.set()


async def test_a_plain_nats_client_finds_and_asks_the_service(bus, broker):
    await bus.serve({"status": echo})
    client = await nats.connect(broker.url, user_credentials=str(broker.credentials.operator_creds))
    info = json.loads((await client.request("$SRV.INFO.torchloom", b"", timeout=30)).data)
    assert [endpoint["subject"] for endpoint in info["endpoints"]] == ["tl.ctl.run.status"]
    assert (await client.request("tl.ctl.run.status", b"hi", timeout=30)).data == b"you said hi"
    await client.close()


async def test_a_request_without_reply_is_carried_out(bus, broker):
    asked = asyncio.Queue()

    async def stop(body):
        asked.put_nowait(body)
        return b""

    await bus.serve({"actions.stop": stop})
    client = await nats.connect(broker.url, user_credentials=str(broker.credentials.operator_creds))
    await client.publish("tl.ctl.run.actions.stop", b"")
    assert await asyncio.wait_for(asked.get(), 60) == b""
    await client.close()


async def test_what_the_weaver_tells_is_heard_in_order(bus, person, make):
    heard = asyncio.Queue()
    await person.listen(lambda kind, data: heard.put_nowait((kind, json.loads(data)["rank"])))
    for rank in range(100):
        bus.tell("notice", make.hello(rank=rank))
    async with asyncio.timeout(60):
        assert [await heard.get() for _ in range(100)] == [("notice", rank) for rank in range(100)]


async def test_the_command_line_says_when_no_broker_is_there():
    with pytest.raises(BrokerError, match="no NATS server can be reached"):
        await ControlClient.connect("nats://127.0.0.1:1", "run")
