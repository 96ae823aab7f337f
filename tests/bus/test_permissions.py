"""What each identity can and cannot do, tried on the running server."""

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import RawCredentials

from torchloom_core import codec, nats_jwt, subjects

MINE = "g0-0"
OTHER = "g1-0"


@pytest.fixture
async def threadlet(bus, connect_worker):
    await bus.add_worker(MINE)
    await bus.add_worker(OTHER)
    return await connect_worker(MINE)


async def test_a_threadlet_sends_its_own_telemetry_events_and_acks(threadlet, arrivals, make):
    client = threadlet.client
    await client.publish(subjects.telemetry("run", MINE), codec.encode_telemetry(make.telemetry()))
    await client.publish(subjects.event("run", MINE), codec.encode(make.hello()))
    put = await client.jetstream().publish(subjects.ack("run", MINE), codec.encode(make.ack()))
    await arrivals.until(lambda a: len(a.messages) == 3)
    assert put.stream == "TL_REPORT_run"
    assert not threadlet.denials
    assert {type(message).__name__ for message in arrivals.messages} == {
        "Telemetry",
        "Hello",
        "Ack",
    }


async def test_a_threadlet_pulls_and_acknowledges_its_own_commands(threadlet, bus, make):
    await bus.send(make.command())
    message = await threadlet.pull()
    await message.ack_sync()
    assert codec.decode_command(message.data).id == "c1"
    assert not threadlet.denials


async def test_a_threadlet_hears_the_roll_call(threadlet, bus, settle):
    calls = await threadlet.client.subscribe(subjects.roll_call("run"))
    await settle(threadlet.client)
    await bus.roll_call(4)
    message = await calls.next_msg(timeout=30)
    assert codec.decode_roll_call(message.data).epoch == 4


@pytest.mark.parametrize(
    "subject",
    [
        subjects.telemetry("run", OTHER),
        subjects.event("run", OTHER),
        subjects.ack("run", OTHER),
        subjects.command("run", OTHER),
        subjects.command("run", MINE),
        subjects.roll_call("run"),
        subjects.control("run", "actions.stop"),
        subjects.out("run", "verdict"),
        subjects.join("run"),
        f"$JS.API.CONSUMER.MSG.NEXT.TL_CMD_run.{OTHER}",
        f"$JS.ACK.TL_CMD_run.{OTHER}.1.1.1.1.0",
        "$JS.API.STREAM.CREATE.MINE",
        "$JS.API.STREAM.DELETE.TL_CMD_run",
        "$JS.API.STREAM.PURGE.TL_CMD_run",
        "$JS.API.STREAM.MSG.GET.TL_CMD_run",
        f"$JS.API.CONSUMER.DELETE.TL_CMD_run.{MINE}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.TL_CMD_run.{MINE}",
        "$JS.API.CONSUMER.CREATE.TL_CMD_run.spy",
        "$JS.API.DIRECT.GET.KV_TL_run",
        "$JS.API.STREAM.MSG.GET.KV_TL_run",
        "$KV.TL_run.epoch",
        "_INBOX_WEAVER_run.acks",
        f"{subjects.inbox_prefix('run', OTHER)}.x",
        "$SYS.REQ.SERVER.PING",
    ],
)
async def test_a_threadlet_may_not_publish(threadlet, subject):
    assert await threadlet.is_denied(threadlet.client.publish(subject, b"{}"))


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "*",
        "_INBOX.>",
        "_INBOX_WEAVER_run.>",
        "_R_.>",
        subjects.command("run", OTHER),
        subjects.command("run", MINE),
        subjects.telemetry("run", OTHER),
        subjects.ack("run", "*"),
        subjects.out("run"),
        subjects.control("run", ">"),
        subjects.join("run"),
        f"{subjects.inbox_prefix('run', OTHER)}.>",
        "_INBOX_JOIN_run.>",
        "$KV.TL_run.>",
    ],
)
async def test_a_threadlet_may_not_subscribe(threadlet, subject):
    assert await threadlet.is_denied(threadlet.client.subscribe(subject))


async def test_a_threadlet_cannot_have_the_server_write_for_it(threadlet, bus, make):
    # The PubAck of an ack goes to whatever reply subject the publisher names.
    heard = []

    async def stop(body):
        heard.append(body)
        return b"{}"

    await bus.serve({"actions.stop": stop})
    await bus.put("epoch", b"7")
    ack = codec.encode(make.ack())
    for aim in ("$KV.TL_run.epoch", subjects.control("run", "actions.stop"), "tl.cmd.run.g1-0"):
        await threadlet.client.publish(subjects.ack("run", MINE), ack, reply=aim)
    await threadlet.client.jetstream().publish(subjects.ack("run", MINE), ack)
    assert await bus.get("epoch") == b"7"
    assert not heard
    stream = await bus._store._js.stream_info("TL_CMD_run")
    assert stream.state.messages == 0


async def test_a_threadlet_cannot_divert_its_commands_to_another(threadlet, bus, make, settle):
    await threadlet.client.publish(
        f"$JS.API.CONSUMER.MSG.NEXT.TL_CMD_run.{MINE}", b"1", reply=subjects.command("run", OTHER)
    )
    await settle(threadlet.client)
    await bus.send(make.command())
    await bus.send(make.command(id="c2"))
    assert codec.decode_command((await threadlet.pull()).data).worker == MINE
    stream = await bus._store._js.stream_info("TL_CMD_run")
    assert stream.state.messages == 2


async def test_the_anonymous_are_refused(broker):
    with pytest.raises(nats.errors.NoServersError):
        await nats.connect(
            broker.url, max_reconnect_attempts=1, reconnect_time_wait=0.1, error_cb=_ignore
        )


async def test_a_worker_that_signs_for_itself_is_refused(broker):
    seed = nats_jwt.new_seed("user")
    claims = nats_jwt.user_claims([">"], [">"])
    jwt = nats_jwt.sign(nats_jwt.new_seed("account"), nats_jwt.public_key(seed), MINE, claims, 1)
    with pytest.raises(nats.errors.NoServersError):
        await nats.connect(
            broker.url,
            user_credentials=RawCredentials(nats_jwt.creds_text(jwt, seed)),
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
        )


async def test_the_join_identity_can_only_ask_to_join(broker, bus, settle):
    denials = []

    async def note(error):
        denials.append(str(error))

    client = await nats.connect(
        broker.url,
        user_credentials=RawCredentials(broker.credentials.join_creds_text),
        inbox_prefix="_INBOX_JOIN_run",
        error_cb=note,
    )
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request(subjects.join("run"), b"{}", timeout=30)
    assert not denials
    tried = [
        client.publish(subjects.telemetry("run", MINE), b""),
        client.publish(subjects.control("run", "status"), b""),
        client.publish(subjects.command("run", MINE), b""),
        client.publish("$JS.API.STREAM.NAMES", b""),
        client.subscribe(">"),
        client.subscribe(subjects.roll_call("run")),
        client.subscribe(subjects.join("run")),
    ]
    for act in tried:
        await act
    await settle(client)
    assert len(denials) == len(tried), denials
    await client.close()


async def test_a_person_can_ask_and_listen_but_not_act_for_others(broker, bus, settle):
    denials = []

    async def note(error):
        denials.append(str(error))

    client = await nats.connect(
        broker.url, user_credentials=str(broker.credentials.operator_creds), error_cb=note
    )
    await bus.put("knob.lr", b"0.1")
    key_value = await client.jetstream().key_value("TL_run")
    assert (await key_value.get("knob.lr")).value == b"0.1"
    await client.subscribe(subjects.out("run"))
    await settle(client)
    assert not denials
    tried = [
        client.publish("$KV.TL_run.knob.lr", b"9"),
        client.publish(subjects.command("run", MINE), b""),
        client.publish(subjects.telemetry("run", MINE), b""),
        client.publish("$JS.API.STREAM.DELETE.TL_CMD_run", b""),
        client.subscribe("_INBOX_WEAVER_run.>"),
        client.subscribe(subjects.control("run", ">")),
    ]
    for act in tried:
        await act
    await settle(client)
    assert len(denials) == len(tried), denials
    await client.close()


async def test_secrets_can_be_read_by_their_owner_only(broker, tmp_path):
    folder = tmp_path / "state" / "broker"
    assert folder.stat().st_mode & 0o077 == 0
    for path in [folder / "nats.conf", folder / "broker.json", *(folder / "keys").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


async def _ignore(_):
    pass
