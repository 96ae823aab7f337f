"""What the Weaver's bus receives, stores and refuses, on a real server."""

import asyncio
import logging
import re
import time

import nats
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually, soon
from torchloom_core.floor.clock import ManualClock
from torchloom_core.floor.errors import BrokerError, RefusedByBrokerError
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.transport.inbound import Inlet
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.messages import Exit, JoinReply, JoinRequest, Telemetry


async def test_a_malformed_message_is_counted_and_others_are_handled(
    bus, arrivals, weaver_client, make, caplog
):
    caplog.set_level(logging.WARNING)
    good = codec.encode_telemetry(make.telemetry())
    mine = subjects.telemetry("run", "g0-0", 1)
    await weaver_client.publish(mine, b"\xff")
    await weaver_client.publish(mine, b"")
    await weaver_client.publish(mine, codec.encode_telemetry(make.telemetry(values=b"odd")))
    await weaver_client.publish(subjects.telemetry("run", "g1-0", 1), good)
    await weaver_client.publish(mine, codec.encode_telemetry(make.telemetry(run="other")))
    await weaver_client.publish(mine, codec.encode_telemetry(make.telemetry(incarnation=2)))
    await weaver_client.publish(subjects.event("run", "g0-0", 1), b'{"type":"no such"}')
    await weaver_client.publish(subjects.ack("run", "g0-0", 1), b"[" * 30_000)
    await weaver_client.publish(mine, good)
    await arrivals.until(lambda a: len(a.malformed) == 8 and a.messages)
    assert arrivals.messages == [make.telemetry()]
    assert bus.malformed == 8
    by_subject = [record.getMessage().split(": ")[0] for record in caplog.records]
    assert sorted(by_subject) == [
        "dropped a message on tl.ack.run.g0-0.1",
        "dropped a message on tl.evt.run.g0-0.1",
        "dropped a message on tl.telemetry.run.g0-0.1",
        "dropped a message on tl.telemetry.run.g1-0.1",
    ]
    assert all("\n" not in reason for _, reason in arrivals.malformed)


async def test_a_malformed_ack_does_not_come_again(bus, arrivals, weaver_client):
    await weaver_client.publish(subjects.ack("run", "g0-0", 1), b"{}")
    await arrivals.until(lambda a: a.malformed)
    await bus._link.settle()
    state = await bus._streams.context.consumer_info("TL_REPORT_run", bus.reports._consumer)
    assert state.num_ack_pending == 0


async def test_messages_are_stamped_with_the_bus_clock(broker, make, arrivals, weaver_client):
    stamps = []
    clock = ManualClock(start_ns=42)
    creds = broker.credentials.weaver_creds
    bus = await NatsBus.connect(broker.url, "run", creds, clock)

    def receive(message, ts_recv_ns, data):
        stamps.append(ts_recv_ns)
        arrivals.receive(message, ts_recv_ns, data)

    await bus.open(receive, arrivals.reject)
    await weaver_client.publish(subjects.event("run", "g0-0", 1), codec.encode(make.hello()))
    await arrivals.until(lambda a: a.messages)
    assert stamps == [42]
    await bus.close()


async def test_a_receiver_that_raises_gets_an_ack_again_at_the_next_weaver(
    connect_bus, arrivals, make, weaver_client, caplog
):
    tried = asyncio.Event()

    class Failing:
        def receive(self, message, ts_recv_ns, data):
            tried.set()
            raise RuntimeError("the Weaver has a bug")

        def reject(self, subject, reason):
            raise AssertionError(reason)

    bus = await connect_bus(Failing())
    await weaver_client.jetstream().publish(
        subjects.ack("run", "g0-0", 1), codec.encode(make.ack())
    )
    await soon(tried.wait())
    state = await bus._streams.context.consumer_info("TL_REPORT_run", bus.reports._consumer)
    assert state.num_ack_pending == 1


async def test_an_exit_without_a_weaver_is_reported_to_the_next_one(
    connect_bus, arrivals, connect_worker
):
    first = await connect_bus(arrivals)
    await first.close()
    worker = await connect_worker("g0-0")
    death = Exit(run="run", worker="g0-0", incarnation=1, status=-9, expected=False)
    await worker.client.publish(subjects.event("run", "g0-0", 1), codec.encode(death))
    await settle(worker.client)
    await connect_bus(arrivals)
    await arrivals.until(lambda a: a.messages)
    assert arrivals.messages == [death]


async def test_an_unacknowledged_hello_is_not_redelivered_to_the_next_weaver_but_an_ack_is(
    connect_bus, arrivals, connect_worker, make
):
    received = []

    class Killed:
        def receive(self, message, ts_recv_ns, data):
            received.append(message)
            return False

        def reject(self, subject, reason):
            raise AssertionError(reason)

    first = await connect_bus(Killed())
    worker = await connect_worker("g0-0")
    await worker.client.publish(subjects.event("run", "g0-0", 1), codec.encode(make.hello()))
    await worker.client.publish(subjects.ack("run", "g0-0", 1), codec.encode(make.ack()))
    await eventually(lambda: received)
    await first.close()
    bus = await connect_bus(arrivals)
    await arrivals.until(lambda a: make.ack() in a.messages)

    async def all_is_acked():
        info = await bus._streams.context.consumer_info("TL_REPORT_run", bus.reports._consumer)
        return info.num_ack_pending == 0

    await eventually(all_is_acked)
    assert arrivals.messages == [make.ack()]
    await worker.client.publish(subjects.event("run", "g0-0", 1), codec.encode(make.hello()))
    await arrivals.until(lambda a: a.messages[1:] == [make.hello()])


async def test_a_successor_gets_an_unacknowledged_ack_before_later_reports(
    connect_bus, arrivals, connect_worker, make
):
    class Frozen:
        """A Weaver that is sent reports and acknowledges none."""

        receive = reject = staticmethod(lambda *_: False)

    first = await connect_bus(Frozen())
    worker = await connect_worker("g0-0")
    stream = worker.client.jetstream()
    await stream.publish(subjects.ack("run", "g0-0", 1), codec.encode(make.ack()))
    await first.close()
    gone = Exit(run="run", worker="g0-0", incarnation=1, status=0, expected=False)
    await stream.publish(subjects.event("run", "g0-0", 1), codec.encode(gone))
    bus = await connect_bus(arrivals)
    await arrivals.until(lambda a: len(a.messages) == 2)
    assert arrivals.messages == [make.ack(), gone]
    assert await bus.reports.taken_until_ns(time.time_ns) is None


async def test_reports_that_were_lost_with_the_connection_are_read_before_later_ones(
    bus, arrivals, connect_worker, make
):
    worker = await connect_worker("g0-0")
    stream = worker.client.jetstream()
    acks = [make.ack(command=f"c{number}") for number in range(4)]
    lost = []
    (subscription,) = (s for s in bus._link.client._subs.values() if s.subject.endswith(".reports"))

    async def lose(msg):
        lost.append(msg)

    taking, subscription._cb = subscription._cb, lose
    for ack in acks[:2]:
        await stream.publish(subjects.ack("run", "g0-0", 1), codec.encode(ack))
    await eventually(lambda: len(lost) == 2)
    began_ns = bus._clock.now_ns()
    assert await bus.reports.taken_until_ns(time.time_ns) < began_ns
    subscription._cb = taking
    for ack in acks[2:]:
        await stream.publish(subjects.ack("run", "g0-0", 1), codec.encode(ack))
    await arrivals.until(lambda a: len(a.messages) >= 4)
    assert arrivals.messages == acks
    assert await bus.reports.taken_until_ns(time.time_ns) is None


async def test_an_ack_that_was_received_does_not_come_again(
    connect_bus, arrivals, weaver_client, make
):
    first = await connect_bus(arrivals)
    js = weaver_client.jetstream()
    await js.publish(subjects.ack("run", "g0-0", 1), codec.encode(make.ack()))
    await arrivals.until(lambda a: a.messages)
    await first.close()
    await connect_bus(arrivals)
    await js.publish(subjects.ack("run", "g0-0", 1), codec.encode(make.ack(command="c2")))
    await arrivals.until(lambda a: a.messages[-1].command == "c2")
    assert [ack.command for ack in arrivals.messages] == ["c1", "c2"]


async def test_commands_go_to_one_incarnation_in_order(bus, make, connect_worker):
    workers = [await connect_worker(*process) for process in (("g0-0", 1), ("g0-0", 2))]
    for worker in workers:
        await worker.take_commands()
    mine = [make.command(id=f"c{number}", incarnation=1) for number in range(3)]
    other = make.command(incarnation=2)
    await bus.send([*mine, other])
    assert [await workers[0].command() for _ in mine] == mine
    assert await workers[1].command() == other
    assert not any(worker.denials for worker in workers)


async def test_a_command_too_large_for_the_server_is_refused_at_once(bus, make):
    with pytest.raises(RefusedByBrokerError, match=r"send commands: .*maximum payload"):
        await bus.send([make.command(cause="x" * codec.MAX_MESSAGE_BYTES)])


async def test_no_server_stores_or_distributes_commands(bus, connect_bus, weaver_client):
    """Each worker's consumer was a cost, and the stream a second copy of the state's flights."""
    js = weaver_client.jetstream()
    await js.add_stream(name="TL_CMD_run", subjects=["tl.cmd.run.*.*"])  # an earlier version's
    await connect_bus()
    assert {info.config.name for info in await js.streams_info()} == {
        *("TL_REPORT_run", "TL_BULK_run", "KV_TL_run")
    }


async def test_a_bus_knows_whether_another_weaver_was_there_when_it_connected(
    connect_bus, arrivals
):
    first = await connect_bus(arrivals)
    assert not first.reports.others_there
    second = await connect_bus()
    assert second.reports.others_there
    await first.close()
    assert not (await connect_bus()).reports.others_there


async def test_a_weaver_learns_that_it_was_superseded(connect_bus, arrivals):
    first, second = await connect_bus(arrivals), await connect_bus(arrivals)
    epochs = asyncio.Queue()
    epoch = await first.state.claim_epoch()
    await first.on_epoch(epochs.put_nowait)
    assert await second.state.claim_epoch() == epoch + 1
    await second.on_epoch(lambda epoch: epochs.put_nowait(("the newest", epoch)))
    assert await soon(epochs.get()) == epoch + 1
    assert epochs.empty()


async def test_no_two_weavers_claim_one_epoch(connect_bus, arrivals):
    buses = [await connect_bus(arrivals) for _ in range(4)]
    claimed = await asyncio.gather(*(bus.state.claim_epoch() for bus in buses for _ in range(5)))
    assert sorted(claimed) == list(range(min(claimed), min(claimed) + 20))


async def test_a_join_request_is_answered(bus, broker, tmp_path):
    async def grant(request):
        return JoinReply(jwt=f"for {request.worker}")

    await bus.serve_join(grant)
    creds = tmp_path / "join.creds"
    creds.write_text(broker.credentials.join_creds_text())
    joiner = await nats.connect(
        broker.url, user_credentials=str(creds), inbox_prefix="_INBOX_JOIN_run"
    )
    request = JoinRequest(run="run", worker="g0-0", incarnation=1, public_key="U")
    reply = await joiner.request(subjects.join("run"), codec.encode(request), timeout=DEADLINE_S)
    assert codec.decode_json(JoinReply, reply.data, "reply").jwt == "for g0-0"
    garbage = await joiner.request(subjects.join("run"), b"?", timeout=DEADLINE_S)
    assert codec.decode_json(JoinReply, garbage.data, "join reply").error.startswith(
        "join request: "
    )
    assert bus.malformed == 1
    await joiner.close()


async def test_an_unreachable_broker_is_one_clear_line():
    with pytest.raises(BrokerError) as caught:
        await NatsBus.connect("nats://127.0.0.1:1", "run")
    assert str(caught.value).startswith("nats://127.0.0.1:1: no NATS server can be reached: ")
    assert "\n" not in str(caught.value)


async def test_a_weaver_with_the_rights_of_a_person_ends_at_once_and_with_one_line(
    broker, tmp_path, caplog
):
    creds = tmp_path / "alice.creds"
    creds.write_text(broker.credentials.person_creds_text("alice", nats_jwt.new_seed("user")))
    need = f"{broker.url}: need credentials with a Weaver's permissions: nats: "
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(BrokerError, match=re.escape(need)):
            await NatsBus.connect(broker.url, "run", creds)
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


async def test_refused_credentials_are_one_clear_line(broker, tmp_path):
    with pytest.raises(BrokerError) as caught:
        await NatsBus.connect(broker.url, "run")
    assert str(caught.value) == (
        f"{broker.url}: need credentials the server accepts, none were given"
    )
    missing = tmp_path / "missing.creds"
    with pytest.raises(BrokerError, match=r"missing\.creds: credentials cannot be read: No"):
        await NatsBus.connect(broker.url, "run", missing)
    missing.write_text("hello")
    with pytest.raises(BrokerError, match="need a NATS credentials file"):
        await NatsBus.connect(broker.url, "run", missing)


async def test_a_server_that_is_too_old_is_one_clear_line():
    async def greet(reader, writer):
        writer.write(b'INFO {"version":"2.9.10","max_payload":1048576}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(BrokerError) as caught:
        await NatsBus.connect(url, "run")
    assert str(caught.value) == f"{url}: need nats-server >= 2.11, was 2.9.10"
    server.close()
    await server.wait_closed()


@pytest.fixture
async def own_server(tmp_path):
    """Start a server of the user's own, without credentials, in place of the one before."""
    started = []

    async def end():
        while started:
            process = started.pop()
            process.terminate()
            await process.wait()

    async def start(extra=""):
        await end()
        config = tmp_path / "own.conf"
        config.write_text(f'host: 127.0.0.1\nport: -1\nports_file_dir: "{tmp_path}"\n{extra}')
        process = await asyncio.create_subprocess_exec(
            find_server(), "-c", str(config), stderr=asyncio.subprocess.DEVNULL
        )
        started.append(process)
        ports = tmp_path / f"nats-server_{process.pid}.ports"
        await eventually(lambda: ports.exists() and ports.read_text().endswith("}"))
        return ports.read_text().split('"nats"')[1].split('"')[1]

    yield start
    await end()


async def test_a_server_without_jetstream_is_one_clear_line(own_server):
    url = await own_server()
    with pytest.raises(BrokerError, match=f"{url}: need a server with JetStream on"):
        await NatsBus.connect(url, "run")


@pytest.mark.parametrize(
    ("room", "most_bytes"), [("2GB", 1 << 30), ("100MB", 1 << 26), ("1MB", -1)]
)
async def test_reports_are_bounded_by_the_bytes_there_is_room_for(
    own_server, tmp_path, room, most_bytes
):
    url = await own_server(f'jetstream {{ store_dir: "{tmp_path}/js", max_file_store: {room} }}\n')
    for _ in range(2):
        bus = await NatsBus.connect(url, "run")
        made = (await bus._streams.context.stream_info("TL_REPORT_run")).config
        assert (made.max_bytes, made.discard) == (most_bytes, "old")
        await bus.close()


async def test_a_server_that_has_less_room_than_before_is_taken_as_it_is(
    own_server, tmp_path, make
):
    for room in ("2GB", "100MB"):
        config = f'jetstream {{ store_dir: "{tmp_path}/js", max_file_store: {room} }}\n'
        bus = await NatsBus.connect(await own_server(config), "run")
        await bus.send([make.command()])
        info = await bus._streams.context.stream_info("TL_REPORT_run")
        assert info.config.max_bytes == 1 << 30
        await bus.close()


async def test_a_worker_keeps_its_placement_until_a_later_generation(
    bus, arrivals, connect_worker, make
):
    worker = await connect_worker("g0-0")
    mine = subjects.event("run", "g0-0", 1)
    said = (make.hello(), make.hello(group="g1"), make.hello(rank=1, stage=2))
    for hello in (*said, make.hello(group="g1", generation=1), make.hello()):
        await worker.client.publish(mine, codec.encode(hello))
    await arrivals.until(lambda a: len(a.messages) == 2 and len(a.malformed) == 3)
    assert arrivals.messages == [make.hello(), make.hello(group="g1", generation=1)]
    first = "need the placement of its first hello, trainer g0-0, stage 0, shard 0, was trainer"
    assert arrivals.malformed[:2] == [
        (mine, f"{first} g1-0, stage 0, shard 0"),
        (mine, f"{first} g0-1, stage 2, shard 0"),
    ]


@pytest.mark.integration
async def test_an_oversized_message_is_malformed(own_server, arrivals, tmp_path, make):
    url = await own_server(f'max_payload: 4MB\njetstream {{ store_dir: "{tmp_path}/js" }}\n')
    bus = await NatsBus.connect(url, "run")
    await bus.open(arrivals.receive, arrivals.reject)
    client = await nats.connect(url)
    subject = subjects.telemetry("run", "g0-0", 1)
    await client.publish(subject, b"x" * (codec.MAX_MESSAGE_BYTES + 1))
    await client.publish(subject, codec.encode_telemetry(make.telemetry()))
    await arrivals.until(lambda a: a.messages)
    assert arrivals.malformed == [(subject, "need at most 1048576 bytes, was 1048577")]
    await client.close()
    await bus.close()


class Incoming:
    def __init__(self, subject, data):
        self.subject = subject
        self.data = data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary())
def test_no_bytes_make_the_inlet_raise(data):
    got, dropped = [], []
    inlet = Inlet(
        "run", ManualClock(), lambda m, *_: got.append(m), lambda *pair: dropped.append(pair)
    )
    inlet.take_telemetry("tl.telemetry.run.g0-0.1", data)
    for subject in ("tl.ack.run.g0-0.1", "tl.evt.run.g0-0.1"):
        inlet.take_report(Incoming(subject, data))
    assert len(got) + len(dropped) == 3
    assert not any(isinstance(message, Telemetry) for message in got)
