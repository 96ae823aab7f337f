"""The stream of reports, read in order by one Weaver after the other.

JetStream redelivers an unacknowledged report after half a minute, but later reports at once: after
a kill of the Weaver, or a lost connection, a worker's exit would be read before its last ack. So
each Weaver, and each connection, starts its own consumer at the first report that was not handled.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy

from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport.connection import Connection

_log = logging.getLogger(__name__)

_ACK_WAIT_S = 30
_IN_FLIGHT = 4096
"""Maximum number of reports that are not yet acknowledged."""

_LOOK_S = 0.5
"""How long a check waits for reports in flight, seconds."""

_POLL_S = 0.05

Take = Callable[[Msg, bool], bool]
"""Takes a report, and whether it was delivered to an earlier Weaver; False: redeliver it."""


class ReportFeed:
    """One Weaver's consumer of a stream of reports, delivered to the subject ``deliver_to``."""

    def __init__(
        self,
        link: Connection,
        context: JetStreamContext,
        stream: str,
        deliver_to: str,
        in_flight: int = _IN_FLIGHT,
    ) -> None:
        self._link = link
        self._context = context
        self._stream = stream
        self.deliver_to = deliver_to
        self._in_flight = in_flight
        self._consumer = ""
        self._delivered = 0
        self._taken = 0
        self._delivered_before = 0
        self._mark: tuple[int, int] | None = None
        self._taken_until_ns = 0
        self._renewing = asyncio.Lock()
        self.others_there = False

    async def look_for_others(self) -> None:
        """Find out whether another Weaver reads the stream, and what the last one was sent.

        Called before ``deliver_to`` is subscribed to: from then on the last Weaver's consumer
        delivers here what it never saw.
        """
        found = await self._consumers()
        self.others_there = any(info.push_bound for info in found)
        self._delivered_before = max((_delivered(info) for info in found), default=0)

    async def begin(self) -> None:
        """Continue after the reports that the last Weaver acknowledged."""
        before = await self._consumers()
        self._taken = max(map(_floor, before), default=0)
        if self.others_there:
            self._delivered_before = max((_delivered(info) for info in before), default=0)
        await self._begin_consumer()
        for info in before:
            await self._drop(info.name)

    async def begin_again(self) -> None:
        """Continue after the last handled report: later ones may have been lost."""
        async with self._renewing:
            before = self._consumer
            if before:
                await self._begin_consumer()
                await self._drop(before)

    async def take(self, msg: Msg, take: Take) -> bool:
        """Pass on the next report, and return whether to acknowledge it."""
        try:
            metadata = msg.metadata
        except NotJSMessageError:
            return False
        if metadata.consumer != self._consumer:
            return False  # of a deleted consumer; ours delivers it again
        if metadata.sequence.consumer != self._delivered + 1:
            _log.info("reports were lost in transit; reading them again")
            try:
                await self.begin_again()
            except BrokerError as error:
                _log.warning("%s", error)
            return False
        place = metadata.sequence.stream
        if place > self._taken:
            if not take(msg, place <= self._delivered_before):
                return False
            self._taken = place
        self._delivered += 1
        return True

    async def taken_until_ns(self, now_ns: Callable[[], int]) -> int | None:
        """Return until when all stored reports were handled; None: now; 0: unknown."""
        began_ns = now_ns()
        with suppress(TimeoutError, nats.errors.Error):
            async with asyncio.timeout(_LOOK_S):
                while True:
                    if self._mark is None:
                        asked_ns = now_ns()
                        last = (await self._context.stream_info(self._stream)).state.last_seq
                        self._mark = asked_ns, last
                    asked_ns, last = self._mark
                    while self._taken < last and not await self._is_drained():  # noqa: ASYNC110
                        await asyncio.sleep(_POLL_S)
                    self._mark, self._taken_until_ns = None, asked_ns
                    if asked_ns >= began_ns:
                        return None
        return self._taken_until_ns

    async def _is_drained(self) -> bool:
        """Return whether no report is pending, as when the last ones were deleted."""
        info = await self._context.consumer_info(self._stream, self._consumer)
        return not info.num_pending and not info.num_ack_pending

    async def _begin_consumer(self) -> None:
        name = f"weaver-{secrets.token_hex(4)}"
        # A push consumer with a fixed subject is fastest: no polling, and a new Weaver takes over
        # at once from one that hangs.
        config = ConsumerConfig(
            durable_name=name,
            deliver_subject=self.deliver_to,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._taken + 1,
            ack_policy=AckPolicy.ALL,
            ack_wait=_ACK_WAIT_S,
            max_ack_pending=self._in_flight,
        )
        self._consumer, self._delivered = name, 0
        await self._link.persist(
            "make the Weaver's consumer", lambda: self._context.add_consumer(self._stream, config)
        )

    async def _drop(self, name: str) -> None:
        async def drop() -> None:
            with suppress(nats.js.errors.NotFoundError):
                await self._context.delete_consumer(self._stream, name)

        await self._link.persist("delete a consumer of reports", drop)

    async def _consumers(self) -> list[ConsumerInfo]:
        return await self._link.persist(
            "list the consumers of reports", lambda: self._context.consumers_info(self._stream)
        )


def _floor(info: ConsumerInfo) -> int:
    """Return the sequence number up to which all is acknowledged."""
    floor = info.ack_floor.stream_seq if info.ack_floor else 0
    return max(floor, (info.config.opt_start_seq or 1) - 1)


def _delivered(info: ConsumerInfo) -> int:
    return info.delivered.stream_seq if info.delivered else 0
