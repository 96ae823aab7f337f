"""The permissions of each identity, tested on the running server."""

import contextlib

import msgspec
import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import RawCredentials

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from torchloom_core.live.transport.security import nats_jwt, rights
from torchloom_core.live.transport.security.credentials import Keys
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.access import ACTS, ADMINISTERS, READS, VERBS_OF
from torchloom_core.wire.messages import JoinReply, JoinRequest, PauseState, RollCall

MINE = "g0-0"
OTHER = "g1-0"


@pytest.fixture
async def threadlet(bus, connect_worker):
    return await connect_worker(MINE)


async def test_a_threadlet_sends_its_own_telemetry_events_and_acks(threadlet, arrivals, make):
    client = threadlet.client
    await client.publish(
        subjects.telemetry("run", MINE, 1), codec.encode_telemetry(make.telemetry())
    )
    await client.publish(subjects.event("run", MINE, 1), codec.encode(make.hello()))
    put = await client.jetstream().publish(subjects.ack("run", MINE, 1), codec.encode(make.ack()))
    await arrivals.until(lambda a: len(a.messages) == 3)
    assert put.stream == "TL_REPORT_run"
    assert not threadlet.denials
    assert {type(message).__name__ for message in arrivals.messages} == {
        "Telemetry",
        "Hello",
        "Ack",
    }


async def test_a_threadlet_receives_its_own_commands(threadlet, bus, make):
    await threadlet.take_commands()
    await bus.send([make.command()])
    assert (await threadlet.command()).id == "c1"
    assert not threadlet.denials


THREADLET_MAY_NOT_PUBLISH = [
    subjects.telemetry("run", OTHER, 1),
    subjects.event("run", OTHER, 1),
    subjects.ack("run", OTHER, 1),
    subjects.command("run", OTHER, 1),
    subjects.command("run", MINE, 1),
    subjects.telemetry("run", MINE, 2),
    subjects.event("run", MINE, 2),
    subjects.ack("run", MINE, 2),
    subjects.roll_call("run"),
    subjects.pause_state("run"),
    subjects.control("run", "operator", "actions.stop"),
    subjects.out("run", "verdict"),
    subjects.join("run"),
    "$JS.API.INFO",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.DELETE.TL_REPORT_run",
    "$JS.API.STREAM.PURGE.TL_REPORT_run",
    "$JS.API.STREAM.MSG.GET.TL_REPORT_run",
    "$JS.API.CONSUMER.CREATE.TL_REPORT_run.spy",
    "$JS.API.CONSUMER.MSG.NEXT.TL_REPORT_run.spy",
    "$JS.ACK.TL_REPORT_run.spy.1.1.1.1.0",
    "$JS.API.DIRECT.GET.KV_TL_run",
    "$JS.API.STREAM.MSG.GET.KV_TL_run",
    "$KV.TL_run.epoch",
    "_INBOX_WEAVER_run.acks",
    "_INBOX_WEAVER_run.standby",
    subjects.bulk("run", OTHER, 1),
    subjects.bulk("run", MINE, 2),
    subjects.record("run", "1"),
    subjects.steer("run"),
    subjects.lighthouse("run"),
    "$KV.TL_run.lease",
    "$KV.TL_run.access",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.MSG.GET.TL_RECORD_run",
    "$JS.API.CONSUMER.CREATE.TL_RECORD_run",
    "$SRV.PING",
    "tl.bucket.run",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
    f"{subjects.inbox_prefix('run', OTHER, 1)}.x",
    f"{subjects.inbox_prefix('run', MINE, 2)}.x",
    "$SYS.REQ.SERVER.PING",
]


async def test_a_threadlet_may_not_publish(threadlet):
    for subject in THREADLET_MAY_NOT_PUBLISH:
        assert await threadlet.is_denied(threadlet.client.publish(subject, b"{}")), subject


THREADLET_MAY_NOT_SUBSCRIBE = [
    ">",
    "*",
    "tl.>",
    "$SYS.>",
    "$JS.>",
    "$SRV.>",
    subjects.record("run", ">"),
    subjects.event("run"),
    subjects.bulk("run"),
    subjects.lighthouse("run"),
    "_INBOX.>",
    "_INBOX_WEAVER_run.>",
    "_R_.>",
    subjects.command("run"),
    subjects.command("run", OTHER, 1),
    subjects.command("run", MINE, 2),
    subjects.telemetry("run", OTHER, 1),
    subjects.ack("run", "*"),
    subjects.out("run"),
    subjects.control("run", "*", ">"),
    subjects.join("run"),
    f"{subjects.inbox_prefix('run', OTHER, 1)}.>",
    f"{subjects.inbox_prefix('run', MINE, 2)}.>",
    "_INBOX_JOIN_run.>",
    "$KV.TL_run.>",
]


async def test_a_threadlet_may_not_subscribe(threadlet):
    for subject in THREADLET_MAY_NOT_SUBSCRIBE:
        assert await threadlet.is_denied(threadlet.client.subscribe(subject)), subject


async def test_credentials_without_an_incarnation_give_no_permission_of_a_worker(
    broker, keys, connect
):
    seed = nats_jwt.new_seed("user")
    claims = nats_jwt.scoped_user_claims(nats_jwt.public_key(keys.workers))
    jwt = nats_jwt.sign(keys.threadlets, nats_jwt.public_key(seed), MINE, claims, keys.made_s)
    worker = await connect(MINE, nats_jwt.creds_text(jwt, seed))
    for incarnation in (1, "", "{{tag(incarnation)}}"):
        own = rights.worker_rights("run", MINE, incarnation)
        for subject in own.publish:
            publish = worker.client.publish(subject.replace(">", "1"), b"")
            assert await worker.is_denied(publish), subject
        assert await worker.is_denied(worker.client.subscribe(own.subscribe[-1]))


@pytest.fixture
def keys(broker):
    file = broker.credentials.weaver_creds.with_name("keys.json")
    return msgspec.json.decode(file.read_bytes(), type=Keys)


@pytest.fixture
async def received(bus):
    """The requests of people and joiners, and the epoch, which they must not change."""
    received = []

    def note(verb):
        async def answer(body, by):
            received.append((verb, by))
            return b"{}"

        return answer

    async def join(request):
        received.append(("join", request.worker))
        return JoinReply(error="no")

    await bus.serve({verb: note(verb) for verb in ("status", "actions.stop")})
    await bus.serve_join(join)
    await bus.state._bucket.put("epoch", b"7")
    return received


# Subjects to which a client may direct an answer by its request's reply subject.
AIMS = [
    "$KV.TL_run.epoch",
    subjects.control("run", "bob", "actions.stop"),
    subjects.command("run", OTHER, 1),
    subjects.event("run", OTHER, 1),
    subjects.ack("run", OTHER, 1),
    subjects.telemetry("run", OTHER, 1),
    subjects.join("run"),
    "_INBOX_WEAVER_run.reports",
]


async def test_no_answer_to_a_threadlet_is_anybodys_question(
    threadlet, bus, arrivals, make, received
):
    client, ack = threadlet.client, codec.encode(make.ack())
    for aim in AIMS:
        await client.publish(subjects.ack("run", MINE, 1), ack, reply=aim)
    # The same once more with an answer: by then the others have been answered, too.
    await client.jetstream().publish(subjects.ack("run", MINE, 1), ack)
    await settle(client)
    await arrivals.until(lambda a: len(a.messages) == len(AIMS) + 1)
    await nothing_was_written(bus, received)
    assert not arrivals.malformed
    assert {type(message).__name__ for message in arrivals.messages} == {"Ack"}


async def test_no_answer_to_a_joiner_is_anybodys_question(connect_joiner, bus, arrivals, received):
    joiner = await connect_joiner()
    request = codec.encode(
        JoinRequest(run="run", worker="g7-0", incarnation=1, public_key="U" * 56)
    )
    for aim in AIMS:
        await joiner.client.publish(subjects.join("run"), request, reply=aim)
    await joiner.client.request(subjects.join("run"), request, timeout=DEADLINE_S)
    await bus._link.settle()
    assert received == [("join", "g7-0")] * (len(AIMS) + 1)
    received.clear()
    await nothing_was_written(bus, received)
    assert not arrivals.malformed + arrivals.messages


async def test_no_answer_to_a_person_is_anybodys_question(connect_person, bus, arrivals, received):
    alice = await connect_person("alice")
    questions = [
        subjects.control("run", "alice", "status"),
        "$SRV.PING",
        "$JS.API.STREAM.INFO.KV_TL_run",
        "$JS.API.DIRECT.GET.KV_TL_run.$KV.TL_run.epoch",
        "$JS.API.DIRECT.GET.KV_TL_run.$KV.TL_run.missing",
    ]
    for question in questions:
        for aim in AIMS:
            await alice.client.publish(question, b"", reply=aim)
        await alice.client.request(question, b"", timeout=DEADLINE_S)
    await bus._link.settle()
    assert received == [("status", "alice")] * (len(AIMS) + 1)
    received.clear()
    await nothing_was_written(bus, received)
    assert not alice.denials
    assert not arrivals.malformed + arrivals.messages


async def nothing_was_written(bus, received):
    assert await bus.state.get("epoch") == b"7"
    assert not received


async def test_no_client_can_have_the_server_report_delivery_to_another(
    threadlet, connect_person, make
):
    alice = await connect_person("alice")
    mine = {
        alice: subjects.control("run", "alice", "status"),
        threadlet: subjects.event("run", MINE, 1),
    }
    for member, subject in mine.items():
        for aim in [*AIMS, subjects.roll_call("run"), subjects.pause_state("run")]:
            traced = {"Nats-Trace-Dest": aim}
            hello = codec.encode(make.hello())
            assert await member.is_denied(member.client.publish(subject, hello, headers=traced))


async def test_the_anonymous_are_refused(broker):
    with pytest.raises(nats.errors.NoServersError):
        await nats.connect(
            broker.url, max_reconnect_attempts=1, reconnect_time_wait=0.1, error_cb=_ignore
        )


async def test_a_worker_that_signs_for_itself_is_refused(broker):
    seed = nats_jwt.new_seed("user")
    claims = nats_jwt.user_claims([">"], [">"], -1)
    jwt = nats_jwt.sign(nats_jwt.new_seed("account"), nats_jwt.public_key(seed), MINE, claims, 1)
    with pytest.raises(nats.errors.NoServersError):
        await nats.connect(
            broker.url,
            user_credentials=RawCredentials(nats_jwt.creds_text(jwt, seed)),
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            error_cb=_ignore,
        )


@pytest.mark.parametrize("role", sorted(VERBS_OF))
async def test_a_person_sends_the_verbs_of_their_role_and_no_others(connect_person, role):
    person = await connect_person("alice", role)
    denied = set()
    for verb in READS | ACTS | ADMINISTERS:
        subject = subjects.control("run", "alice", verb)
        if await person.is_denied(person.client.publish(subject, b"{}")):
            denied.add(verb)
    assert denied == (READS | ACTS | ADMINISTERS) - VERBS_OF[role]


JOINER_MAY_NOT_PUBLISH = [
    subjects.telemetry("run", MINE, 1),
    subjects.event("run", MINE, 1),  # a forged exit
    subjects.ack("run", MINE, 1),
    subjects.command("run", MINE, 1),
    subjects.roll_call("run"),
    subjects.pause_state("run"),
    subjects.control("run", "operator", "status"),
    "$JS.API.CONSUMER.MSG.NEXT.TL_REPORT_run.spy",
    "$JS.API.STREAM.NAMES",
    "$SRV.PING",
    "$KV.TL_run.epoch",
]


async def test_a_joiner_may_not_publish(connect_joiner):
    joiner = await connect_joiner()
    for subject in JOINER_MAY_NOT_PUBLISH:
        assert await joiner.is_denied(joiner.client.publish(subject, b"{}")), subject


JOINER_MAY_NOT_SUBSCRIBE = [
    ">",
    subjects.roll_call("run"),
    subjects.pause_state("run"),
    subjects.join("run"),
    subjects.event("run"),
]


async def test_a_joiner_may_not_subscribe(connect_joiner):
    joiner = await connect_joiner()
    for subject in JOINER_MAY_NOT_SUBSCRIBE:
        assert await joiner.is_denied(joiner.client.subscribe(subject)), subject


async def test_a_person_sends_requests_under_their_own_name(connect_person, bus):
    persons = []

    async def status(body, by):
        persons.append(by)
        return b"fine"

    await bus.serve({"status": status})
    alice, bob = await connect_person("alice"), await connect_person("bob")
    for person in (alice, bob):
        subject = subjects.control("run", person.name, "status")
        assert (await person.client.request(subject, timeout=DEADLINE_S)).data == b"fine"
    assert persons == ["alice", "bob"]
    assert not alice.denials + bob.denials


async def test_a_person_receives_the_messages_of_the_run(connect_person, connect_worker, bus, make):
    alice, worker = await connect_person("alice"), await connect_worker(MINE)
    published = {
        subjects.telemetry("run", MINE, 1): codec.encode_telemetry(make.telemetry()),
        subjects.event("run", MINE, 1): codec.encode(make.hello()),
        subjects.ack("run", MINE, 1): codec.encode(make.ack()),
        subjects.command("run", MINE, 1): codec.encode(make.command()),
        subjects.out("run", "notice"): codec.encode(make.hello()),
        subjects.roll_call("run"): codec.encode(RollCall(run="run", epoch=4)),
        subjects.pause_state("run"): codec.encode(PauseState(run="run", epoch=4)),
    }
    ears = [await alice.client.subscribe(subject) for subject in published]
    await settle(alice.client)
    for subject in (subjects.telemetry, subjects.event, subjects.ack):
        await worker.client.publish(subject("run", MINE, 1), published[subject("run", MINE, 1)])
    await bus.send([codec.decode_command(published[subjects.command("run", MINE, 1)])])
    bus.publish("notice", make.hello())
    await bus.roll_call(4)
    bus.publish_pause(PauseState(run="run", epoch=4))
    assert [(await ear.next_msg(DEADLINE_S)).data for ear in ears] == list(published.values())
    assert not alice.denials


async def test_a_person_reads_keys_as_a_plain_client_does(connect_person, bus):
    await bus.state._bucket.put("knob.lr", b"0.1")
    alice = await connect_person("alice")
    key_value = await alice.client.jetstream().key_value("TL_run")
    assert (await key_value.get("knob.lr")).value == b"0.1"
    # Every answer there is: a plain client takes the first one for the only one.
    answers = await alice.client.subscribe("_INBOX.about")
    await alice.client.publish("$JS.API.STREAM.INFO.KV_TL_run", reply="_INBOX.about")
    assert b'"config"' in (await answers.next_msg(DEADLINE_S)).data
    await alice.client.request("$JS.API.STREAM.INFO.KV_TL_run", timeout=DEADLINE_S)
    assert answers.pending_msgs == 0
    assert not alice.denials


PERSON_MAY_NOT_PUBLISH = [
    subjects.control("run", "bob", "actions.stop"),
    subjects.control("run", "*", "actions.stop"),
    "tl.ctl.run.>",
    "tl.ctl.run.actions.stop",
    "tl.ctl.other.alice.actions.stop",
    subjects.command("run", MINE, 1),
    subjects.telemetry("run", MINE, 1),
    subjects.event("run", MINE, 1),
    subjects.ack("run", MINE, 1),
    subjects.roll_call("run"),
    subjects.pause_state("run"),
    subjects.out("run", "verdict"),
    subjects.join("run"),
    "$KV.TL_run.knob.lr",
    "$JS.API.STREAM.DELETE.TL_REPORT_run",
    "$JS.API.STREAM.PURGE.KV_TL_run",
    "$JS.API.STREAM.MSG.GET.TL_REPORT_run",
    "$JS.API.CONSUMER.MSG.NEXT.TL_REPORT_run.spy",
    "$JS.ACK.TL_REPORT_run.spy.1.1.1.1.0",
    "_INBOX_WEAVER_run.reports",
    "_INBOX_WEAVER_run.standby",
    "_INBOX.other",
    "$KV.TL_run.lease",
    subjects.steer("run"),
    subjects.record("run", "1"),
    "$JS.API.CONSUMER.CREATE.TL_RECORD_run",
    "$JS.API.STREAM.MSG.GET.TL_RECORD_run",
    "$JS.API.DIRECT.GET.TL_REPORT_run.x",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
]


async def test_a_person_may_not_publish(connect_person):
    alice = await connect_person("alice", "admin")
    for subject in PERSON_MAY_NOT_PUBLISH:
        assert await alice.is_denied(alice.client.publish(subject, b"{}")), subject


PERSON_MAY_NOT_SUBSCRIBE = [
    ">",
    "_INBOX_WEAVER_run.>",
    "_R_.>",
    subjects.control("run", "*", ">"),
    "$KV.TL_run.>",
    "tl.>",
    "$SYS.>",
    "$JS.>",
    subjects.record("run", ">"),
    subjects.join("run"),
    f"{subjects.inbox_prefix('run', MINE, 1)}.>",
]


async def test_a_person_may_not_subscribe(connect_person):
    alice = await connect_person("alice")
    for subject in PERSON_MAY_NOT_SUBSCRIBE:
        assert await alice.is_denied(alice.client.subscribe(subject)), subject


async def test_a_connection_has_a_limit_of_subscriptions(
    connect_worker, connect_joiner, connect_person
):
    worker, joiner = await connect_worker(MINE), await connect_joiner()
    for member, inbox, most in (
        (worker, subjects.inbox_prefix("run", MINE, 1), 64),
        (joiner, subjects.join_inbox("run"), 8),
        (await connect_person("alice"), "_INBOX", 256),
    ):
        for number in range(most):
            await member.client.subscribe(f"{inbox}.{number}")
        await settle(member.client)
        assert not member.denials
        await member.client.subscribe(f"{inbox}.more")
        with contextlib.suppress(nats.errors.Error):  # nats-py closes on request
            await settle(member.client)
        assert "maximum subscriptions exceeded" in str(member.client.last_error)


async def _ignore(_):
    pass
