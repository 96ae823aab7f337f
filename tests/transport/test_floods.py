"""A flood of one sender does not affect the others."""

import asyncio
import json
import urllib.request

import pytest
from nats.errors import NotJSMessageError
from nats.js.api import StreamConfig

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from torchloom_core.floor import quota as quota_module
from torchloom_core.floor.clock import SECOND_NS, ManualClock
from torchloom_core.floor.quota import Quota
from torchloom_core.live.transport import NatsBus, jetstream
from torchloom_core.live.transport.inbound import Inlet
from torchloom_core.live.transport.turns import Turns
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.messages import Exit, JoinReply, Note

NOW_NS = 1_000 * SECOND_NS


class Incoming:
    def __init__(self, subject, data):
        self.subject = subject
        self.data = data

    @property
    def metadata(self):
        raise NotJSMessageError


def test_a_sender_has_so_much_at_once_and_more_after_a_rest():
    quota = Quota(per_s=2, rest_s=1.5)
    assert [quota.takes("a", NOW_NS) for _ in range(5)] == [True, True, True, False, False]
    assert quota.takes("b", NOW_NS)
    later_ns = NOW_NS + SECOND_NS
    assert [quota.takes("a", later_ns) for _ in range(3)] == [True, True, False]
    later_ns += 1000 * SECOND_NS
    assert [quota.takes("a", later_ns) for _ in range(4)] == [True, True, True, False]


def test_bytes_count_too_and_what_is_refused_costs_nothing():
    quota = Quota(per_s=1e9, rest_s=10, bytes_per_s=10)
    assert quota.takes("a", NOW_NS, 90)
    assert not quota.takes("a", NOW_NS, 20)
    assert quota.takes("a", NOW_NS, 9)
    assert not quota.takes("a", NOW_NS, 10)
    assert quota.takes("a", NOW_NS + SECOND_NS, 10)


def test_of_too_many_senders_all_begin_anew(monkeypatch):
    monkeypatch.setattr(quota_module, "_KNOWN", 3)
    quota = Quota(per_s=1, rest_s=1)
    for name in "abc":
        assert quota.takes(name, NOW_NS)
    assert not quota.takes("a", NOW_NS)
    assert quota.takes("d", NOW_NS)
    assert quota.takes("a", NOW_NS)


async def test_work_that_never_waits_gives_the_others_their_turn():
    turns, ran = Turns(), 0

    def run():
        nonlocal ran
        ran += 1

    for expected in (1, 2):
        asyncio.get_running_loop().call_soon(run)
        for _ in range(10_000_000):
            if ran == expected:
                break
            await turns.give()
        assert ran == expected


@pytest.mark.parametrize("kind", ["telemetry", "event", "ack"])
async def test_messages_of_a_worker_over_its_rate_limit_are_dropped_and_logged(make, kind):
    got, dropped = [], []

    def take(message, ts_ns, data):
        got.append(message.worker)
        return True

    inlet = Inlet("run", ManualClock(NOW_NS), take, lambda *pair: dropped.append(pair))
    encode = codec.encode_telemetry if kind == "telemetry" else codec.encode
    body = {"telemetry": make.telemetry, "event": make.hello, "ack": make.ack}[kind]
    for worker, count in (("g0-0", 10_000), ("g1-0", 1)):
        subject = getattr(subjects, kind)("run", worker, 1)
        group = {"group": worker[:2]} if kind == "event" else {}
        message = Incoming(subject, encode(body(worker=worker, **group)))
        for _ in range(count):
            if kind == "telemetry":
                inlet.take_telemetry(message.subject, message.data)
            else:
                assert inlet.take_report(message)  # or it would come again
    assert got[-1] == "g1-0"
    assert 900 <= got.count("g0-0") <= 5000
    assert len(got) + len(dropped) == 10_001
    assert {reason for _, reason in dropped} == {"its sender sends more than it may"}


@pytest.fixture
async def still_bus(broker, arrivals):
    """A bus for which no time passes."""
    bus = await NatsBus.connect(
        broker.url, "run", broker.credentials.weaver_creds, ManualClock(NOW_NS)
    )
    await bus.open(arrivals.receive, arrivals.reject)
    yield bus
    await bus.close()


async def test_a_person_over_the_rate_limit_is_not_answered_and_may_still_stop_all(
    still_bus, connect_person, caplog
):
    requests = []

    def noting(verb):
        async def note(body, by):
            requests.append((verb, by))
            return b"{}"

        return note

    await still_bus.serve({verb: noting(verb) for verb in ("status", "actions.stop")})
    mallory, bob = await connect_person("mallory"), await connect_person("bob")
    for _ in range(2000):
        await mallory.client.publish(subjects.control("run", "mallory", "status"), b"")
    await settle(mallory.client)
    for person in (mallory, bob):
        stop = subjects.control("run", person.name, "actions.stop")
        await person.client.request(stop, b"", timeout=DEADLINE_S)
    await bob.client.request(subjects.control("run", "bob", "status"), b"", timeout=DEADLINE_S)
    assert requests.count(("status", "mallory")) == 500
    assert requests.count(("actions.stop", "mallory")) == 1
    assert {("actions.stop", "bob"), ("status", "bob")} <= set(requests)
    logged = [r.getMessage() for r in caplog.records if "mallory" in r.getMessage()]
    assert logged == ["mallory sends too many requests (status): not answered (1 so far)"]


async def test_a_flood_of_one_kind_is_not_in_the_way_of_another(bus, broker):
    async def echo(body, by):
        return body

    async def refuse(request):
        return JoinReply(error="no")

    await bus.serve({"status": echo, "actions.stop": echo})
    await bus.serve_join(refuse)
    wanted = ["tl.telemetry.run.*.*", "tl.ctl.run.*.actions.stop", "tl.ctl.run.*.status"]
    wanted.append("tl.join.run")
    table = await asyncio.to_thread(_connections, broker._running.monitor_url)
    carried_by = [
        {connection["cid"] for connection in table if subject in connection["subscriptions_list"]}
        for subject in wanted
    ]
    assert [len(cids) for cids in carried_by] == [1] * 4
    assert len(set.union(*carried_by)) == 4


@pytest.fixture
def small_streams(monkeypatch):
    """Streams of 2 MiB, of which a sixteenth is 4 reports, or 1 large event."""
    for stream in ("_REPORT_BYTES", "_BULK_BYTES"):
        monkeypatch.setattr(jetstream, stream, (2 << 20,))
    monkeypatch.setattr(jetstream, "MAX_MESSAGE_BYTES", 1 << 17)


@pytest.mark.parametrize("subject", [subjects.event, subjects.ack, subjects.bulk])
async def test_a_flood_by_one_worker_takes_no_report_of_another_s(
    connect_bus, connect_worker, arrivals, make, small_streams, subject
):
    """No Weaver runs meanwhile. The flood exceeds all of the streams."""
    await (await connect_bus()).close()
    victim, flood = await connect_worker("g0-0"), await connect_worker("g1-0")
    large = make.note(kind="dump", fields={"stacks": "x" * 100_000})
    ended = Exit(run="run", worker="g0-0", incarnation=1, status=1, expected=False)
    reports = [make.ack(), large, ended]
    for message in reports:
        how = {Ack: subjects.ack, Note: subjects.bulk}.get(type(message), subjects.event)
        await victim.client.publish(how("run", "g0-0", 1), codec.encode(message))
    await settle(victim.client)
    for size in (30_000, 100_000, 900_000):
        for _ in range((8 << 20) // size):
            await flood.client.publish(subject("run", "g1-0", 1), b"x" * size)
        await settle(flood.client)
    await connect_bus(arrivals)
    await arrivals.until(lambda a: len(a.messages) == len(reports))
    assert sorted(map(repr, arrivals.messages)) == sorted(map(repr, reports))


async def test_of_one_workers_reports_the_oldest_go_and_the_newest_stay(
    connect_bus, connect_worker, make, small_streams
):
    bus = await connect_bus()
    worker = await connect_worker("g0-0")
    for _ in range(9):
        hello = codec.encode(make.hello())
        await worker.client.jetstream().publish(subjects.event("run", "g0-0", 1), hello)
    info = await bus._streams.context.stream_info("TL_REPORT_run", subjects_filter=">")
    assert info.state.subjects == {"tl.evt.run.g0-0.1": 4}
    assert info.state.last_seq == 9


async def test_the_streams_of_an_earlier_version_are_brought_up_to_date_and_lose_nothing_unread(
    connect_bus, connect_worker, weaver_client, arrivals, make
):
    streams, name = weaver_client.jetstream(), "TL_REPORT_run"
    accepted = [subjects.ack("run"), subjects.event("run")]
    old = StreamConfig(name=name, subjects=accepted, max_msgs_per_subject=20_000, max_bytes=1 << 30)
    await streams.add_stream(old)
    dump = make.note(kind="dump", fields={"stacks": "x" * 100_000})
    await streams.publish(subjects.event("run", "g0-0", 1), codec.encode(dump))
    bus = await connect_bus(arrivals)
    await arrivals.until(lambda a: a.messages)
    assert arrivals.messages == [dump]
    config = (await bus._streams.context.stream_info(name)).config
    assert (config.max_msg_size, config.max_msgs_per_subject) == (32 << 10, 2048)


def _connections(monitor_url):
    with urllib.request.urlopen(f"{monitor_url}/connz?subs=1", timeout=DEADLINE_S) as answer:
        return [c for c in json.load(answer)["connections"] if "subscriptions_list" in c]
