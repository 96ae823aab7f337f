"""The Weaver's side of the bus: incoming messages, outgoing messages, and stored state.

Calls that write (:meth:`NatsBus.store`, ...) return once the broker has stored the write, wait for
a restart of the broker, and raise :class:`~torchloom_core.floor.errors.BrokerError` if it takes too
long.

People, the kill switch, joiners and telemetry have a connection each, in addition to the one for
all else: a server delivers a connection's messages in order, and cuts off one that falls behind.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.micro.service import Service

from torchloom_core.floor.clock import Clock, SystemClock
from torchloom_core.floor.errors import BrokerError
from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.server_urls import shown
from torchloom_core.floor.tls import NO_TLS, TlsFiles
from torchloom_core.live.transport import operator
from torchloom_core.live.transport.acknowledgement import Acknowledgements, Durable
from torchloom_core.live.transport.connection import PING_EVERY_S, Admits, Connection
from torchloom_core.live.transport.connection_closer import ConnectionCloser
from torchloom_core.live.transport.inbound import Inlet, Malformed, Receive
from torchloom_core.live.transport.jetstream import JetStream
from torchloom_core.live.transport.join_desk import Handler, JoinDesk
from torchloom_core.live.transport.join_gate import JoinGate
from torchloom_core.live.transport.lease import LEASE_S, BucketKey, Lease
from torchloom_core.live.transport.outgoing import Outgoing
from torchloom_core.live.transport.owner import Ownership
from torchloom_core.live.transport.record_stream import RecordStream
from torchloom_core.live.transport.report_feed import ReportFeed
from torchloom_core.live.transport.standbys import Standbys
from torchloom_core.live.transport.state_bucket import EPOCH_KEY, StateBucket
from torchloom_core.live.transport.turns import Turns
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import Bytes, decode_newest, encode
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.limits import MAX_WORKERS
from torchloom_core.wire.messages import PauseState, RollCall
from torchloom_core.wire.steering import Steer

_BULK_IN_FLIGHT = 64
"""Maximum number of large events that are not yet acknowledged."""

_PENDING_MESSAGES = 1 << 20
_PENDING_BYTES = 1 << 29
_CLOSE_S = 5.0
_LEASE_PING_S = 1
"""Of the lease's connection in a cluster."""
_EPOCH_LOOKS_S = (0.0, 0.05, 0.5)

_KILL_SWITCH = frozenset({"actions.stop", "actions.resume"})

_Take = Callable[[Msg], Awaitable[None]]


class NatsBus:
    """The Weaver's connection to one run."""

    def __init__(
        self,
        link: Connection,
        another: Callable[..., Awaitable[Connection]],
        run: str,
        clock: Clock,
        lease: Lease,
        servers: int = 0,
    ) -> None:
        self._link, self._another = link, another
        self._run, self._servers = run, servers
        self._clock = clock
        self.lease = lease
        self.standbys = Standbys(link, f"{_inbox(run)}.standby")
        lease.is_alone = self.standbys.are_none
        self._service_links: list[Connection] = []
        self._services: list[Service] = []
        self._closer = ConnectionCloser(link)
        self._turns = Turns()
        self._streams = JetStream(link, run, servers)
        self.state = StateBucket(link, run, self._streams)
        feed_of = partial(ReportFeed, link, self._streams.context)
        self.reports = feed_of(subjects.report_stream(run), f"{_inbox(run)}.reports")
        self._bulk = feed_of(subjects.bulk_stream(run), f"{_inbox(run)}.bulk", _BULK_IN_FLIGHT)
        self._inlet: Inlet | None = None
        self._subjects: dict[bytes, str] = {}
        self._superseded: Callable[[int], None] | None = None
        self._outgoing = Outgoing(link)
        self._acks = Acknowledgements(lease)
        self.recorded: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0.0)
        self._tasks = [self._outgoing.task]
        self.owner = Ownership(link, f"{_inbox(run)}.owner", self.state)

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        creds: Path | None = None,
        clock: Clock | None = None,
        patience_s: float = 0.0,
        lease_s: float = LEASE_S,
        tls: TlsFiles = NO_TLS,
        servers: int = 0,
    ) -> "NatsBus":
        """Connect, then make streams and bucket; BrokerError if not within ``patience_s``.

        ``servers``: how many the cluster has, if that is known.
        """
        another = partial(
            Connection.open,
            url,
            creds=creds,
            tls=tls,
            in_order=servers > 0,
            name=f"torchloom-weaver-{run}",
            inbox_prefix=_inbox(run),
            patience_s=patience_s,
        )
        link = await another()
        own = await another(ping_every_s=_LEASE_PING_S if servers else PING_EVERY_S)
        lease = Lease(BucketKey(own, run), run, lease_s)
        bus = cls(link, another, run, clock or SystemClock(), lease, servers)
        bus._service_links.append(own)
        own.others = lambda: [bus._link, *bus._service_links[1:]] if servers else ()
        try:
            await bus._streams.check(shown(url))
            await bus._streams.make()
            await bus.state.make()
            await bus.reports.look_for_others()
        except BrokerError:
            await bus.close()
            raise
        return bus

    @property
    def is_connected(self) -> bool:
        """Whether the broker is connected right now."""
        return self._link.is_connected

    @property
    def malformed(self) -> int:
        """Number of malformed messages dropped so far."""
        return self._inlet.malformed if self._inlet else 0

    async def open(self, receive: Receive, malformed: Malformed, durable: Durable = None) -> None:
        """Receive what workers send.

        ``receive(message, ts_recv_ns)`` must not block. An ack or event is delivered again, to this
        or the next Weaver, until it returns True: a repeated one has to be harmless.
        ``malformed(subject, reason)`` gets every dropped message. ``durable()`` returns once the
        state that follows from the reports so far is stored: they are acknowledged after it.
        """
        self._acks.durable = durable
        self._inlet = Inlet(self._run, self._clock, receive, malformed, decode_newest)
        for feed in (self.reports, self._bulk):
            await self._subscribe(feed.deliver_to, partial(self._take_report, feed))
            await feed.begin()
        await self._open_telemetry()
        await self._subscribe(subjects.lighthouse(self._run), self._take_view)
        await self._link.settle()

    async def connected(self) -> None:
        """Wait until the broker is connected."""
        await self._link.connected()

    async def send(self, commands: Sequence[Command]) -> None:
        """Publish commands to their workers; BrokerError if the connection fails meanwhile."""
        await self.lease.sure()

        async def publish() -> None:
            for one in commands:
                subject = subjects.command(self._run, one.worker, one.incarnation)
                await self._link.client.publish(subject, encode(one))
            await self._link.client.flush()

        await self._link.attempt("send commands", publish)

    async def roll_call(self, epoch: int, workers: Sequence[str] = ()) -> None:
        """Request a hello from these workers, or from all."""
        data = encode(RollCall(run=self._run, epoch=epoch, workers=tuple(workers)))

        async def call() -> None:
            await self._link.client.publish(subjects.roll_call(self._run), data)
            await self._link.settle()

        await self._link.persist("call the roll", call)

    def forget(self, worker: str) -> None:
        """Forget the placement of a worker that is long gone."""
        if self._inlet is not None:
            self._inlet.forget(worker)

    async def drop_reports(self, worker: str) -> None:
        """Delete what a worker has sent and the Weaver has not read."""
        await self._streams.drop_reports(worker)

    def publish(self, kind: str, message: msgspec.Struct) -> None:
        """Publish for subscribers; without a broker it is lost."""
        self._outgoing.add(subjects.out(self._run, kind), message)

    def publish_pause(self, message: PauseState) -> None:
        """Publish which pause is in force; if that is lost, workers resume by themselves."""
        self._outgoing.add(subjects.pause_state(self._run), message)

    def steer(self, message: Steer) -> None:
        """Steer the lighthouse; a lost message is sent again once its view shows that."""
        self._outgoing.add(subjects.steer(self._run), message)

    async def store(self, entries: Mapping[str, bytes | None]) -> None:
        """Store entries of this epoch's state, in order, after the record; None deletes one."""
        await self.lease.sure()
        await self.recorded()
        await self.state.write(entries)

    async def on_epoch(self, callback: Callable[[int], None]) -> None:
        """Call ``callback(epoch)`` once when another Weaver has claimed a later epoch than ours."""
        self._superseded = callback
        await self._subscribe(f"$KV.{subjects.bucket(self._run)}.{EPOCH_KEY}", self._epoch_moved)
        self._link.on_reconnect(self._catch_up)
        await self._link.settle()
        await self._check_epoch()

    async def serve(self, handlers: Mapping[str, operator.Handler]) -> None:
        """Answer people's requests, each verb with its handler."""
        for verbs in (handlers.keys() & _KILL_SWITCH, handlers.keys() - _KILL_SWITCH):
            if verbs:
                chosen = {verb: handlers[verb] for verb in handlers if verb in verbs}
                # A connection each, so that a flood of requests cannot block the kill switch.
                service_link = await self._service_link(operator.gate(self._clock.now_ns))
                own = chosen, self._turns, self.state.epoch, self.lease
                self._services.append(await operator.serve(service_link.client, self._run, *own))
                await service_link.settle()

    async def serve_join(
        self,
        handler: Handler,
        report: Callable[[Notice], None] = lambda _: None,
        per_s: float = float("inf"),
    ) -> None:
        """Answer workers' join requests, to an empty one with the time; ``report`` on a herd."""
        now_ns = self._clock.now_ns
        gate = JoinGate(now_ns, self._closer.close, report)
        service_link = await self._service_link(gate.admits)
        desk = JoinDesk(handler, now_ns, self._reject, report, per_s)
        self._tasks.append(asyncio.create_task(desk.run()))
        await self._subscribe(subjects.join(self._run), desk.take, service_link)
        await service_link.settle()

    def _reject(self, subject: str, reason: str) -> None:
        if self._inlet:
            self._inlet.reject(subject, reason)

    def shut(self) -> None:
        """Stop receiving; what is not acknowledged goes to the next Weaver."""
        self._inlet = None

    async def close(self) -> None:
        """Stop receiving, send what is waiting if the broker accepts it, and disconnect."""
        self.shut()
        with suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                for service in self._services if self.is_connected else ():
                    await service.stop()
                if self.is_connected:
                    await self._outgoing.sent()
                    await self._acks.finish()
        await self._acks.close()
        await self._closer.end()
        await end_all(*self._tasks)
        for link in (*self._service_links, self._link):
            await link.close()

    async def record_stream(self) -> RecordStream:
        """Return the stream of trajectory files, over a connection of its own."""
        return RecordStream(await self._service_link(None), self._run, self._servers)

    async def _service_link(self, admits: Admits | None) -> Connection:
        service_link = await self._another(admits=admits)
        self._service_links.append(service_link)
        return service_link

    async def _subscribe(self, to: str, take: _Take, link: Connection | None = None) -> None:
        await (link or self._link).client.subscribe(
            to,
            cb=take,
            pending_msgs_limit=_PENDING_MESSAGES,
            pending_bytes_limit=_PENDING_BYTES,
        )

    async def _open_telemetry(self) -> None:
        async def never(_: Msg) -> None:  # the connection's ``take`` comes first
            raise NotImplementedError

        link = await self._another(take=self._take_telemetry)
        self._service_links.append(link)
        await self._subscribe(subjects.telemetry(self._run), never, link)
        await link.settle()

    def _take_telemetry(self, subject: bytes, data: Bytes) -> None:
        if self._inlet is not None:
            known = self._subjects.get(subject)
            if known is None:
                if len(self._subjects) >= MAX_WORKERS:
                    self._subjects.clear()
                known = self._subjects[subject] = subject.decode(errors="replace")
            self._inlet.take_telemetry(known, data)

    async def _take_view(self, msg: Msg) -> None:
        await self._turns.give()
        if self._inlet is not None:
            self._inlet.take_view(msg)

    async def _take_report(self, feed: ReportFeed, msg: Msg) -> None:
        await self._turns.give()
        if self._inlet is None:
            return
        if await feed.take(msg, self._inlet.take_report):
            self._acks.add(msg)

    async def _epoch_moved(self, _: Msg) -> None:
        # A claim that lost its race is published too, so the bucket decides; and a claim may
        # arrive before the bucket has it, so the read is repeated.
        for wait_s in _EPOCH_LOOKS_S:
            await asyncio.sleep(wait_s)
            await self._check_epoch()
            if self._superseded is None:
                return

    async def _catch_up(self) -> None:
        """Catch up on what was missed while the connection was down."""
        await self._check_epoch()
        if self._superseded is not None:
            await self.reports.begin_again()
            await self._bulk.begin_again()
            await self.roll_call(self.state.epoch)

    async def _check_epoch(self) -> None:
        if self._superseded is None or not self.state.epoch:
            return
        newest = await self.state.newest_epoch()
        if newest > self.state.epoch and self._superseded is not None:
            callback, self._superseded = self._superseded, None
            callback(newest)


def _inbox(run: str) -> str:
    """Return the prefix of the Weaver's own subjects; others may neither read nor write there."""
    return f"_INBOX_WEAVER_{run}"
