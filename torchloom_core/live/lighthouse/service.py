"""The calls of torchft's Managers: heartbeats, and requests that wait for a quorum."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from torchloom_core.floor.errors import LighthouseError, MessageError, StateError
from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.live.lighthouse import protocol
from torchloom_core.live.lighthouse.heartbeats import Heartbeats
from torchloom_core.live.lighthouse.membership import Member, Quorum
from torchloom_core.live.lighthouse.quorum import Electorate
from torchloom_core.live.lighthouse.state_file import StateFile
from torchloom_core.wire.steering import MAX_REPLICAS

_log = logging.getLogger(__name__)

_SAVE_S = 1.0
"""Longest wait of members for the state to be saved: training never stops for a slow disk."""

_ASLEEP_S = 0.5
"""A tick later than this shows that the process did not run, such as during a suspend."""

Context = Any
"""A ``grpc.aio.ServicerContext``; grpcio has no types."""


@dataclass(slots=True)
class Counters:
    """Counters of this process."""

    heartbeats: int = 0
    requests: int = 0
    quorums: int = 0
    joins: int = 0
    late_heartbeats: int = 0
    lost: int = 0
    malformed: int = 0
    unsaved: int = 0


@dataclass(slots=True)
class _Waiter:
    """A group's request, and how many calls wait for its answer; a retry is another call."""

    member: Member
    answer: "asyncio.Future[bytes]"
    calls: int = 0


class Service:
    """torchft's ``LighthouseService`` over an electorate.

    ``last`` is the last quorum formed by this process, at ``formed_s`` of the monotonic clock;
    ``epoch`` that of the last Weaver that steered. ``on_change`` is called when the view may
    change.
    """

    def __init__(
        self,
        electorate: Electorate,
        *,
        hold_s: float,
        tick_s: float,
        state: StateFile | None,
        epoch: int,
    ) -> None:
        self.electorate = electorate
        self.counters = Counters()
        self.last: Quorum | None = None
        self.formed_s = time.monotonic()
        self.epoch = epoch
        self._tick_s = tick_s
        self._state = state
        self.on_change: Callable[[], None] = lambda: None
        self.caller: Callable[[str], str] = lambda peer: peer
        self._waiters: dict[str, _Waiter] = {}
        self._heartbeats = Heartbeats(electorate, hold_s, self.now_s, self._end)
        self._awake_s = time.monotonic()
        self._is_closed = False
        self._saving = asyncio.Lock()
        self._writing: asyncio.Future[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._limited_log = RateLimitedLog(_log)

    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """Return the gRPC methods; they take and return bytes."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            f"/{protocol.SERVICE}/Heartbeat": unary(self.heartbeat),
            f"/{protocol.SERVICE}/Quorum": unary(self.quorum),
        }

    async def heartbeat(self, data: bytes, context: Context) -> bytes:
        """Note that a group is alive, and answer late, to detect if it ends meanwhile."""
        try:
            replica_id = protocol.decode_heartbeat(data)
        except MessageError as error:
            await self._refuse(context, error)
        await self._make_room(replica_id, context)
        self.counters.heartbeats += 1
        self.counters.late_heartbeats += self._heartbeats.is_late(replica_id)
        await self._heartbeats.take(replica_id, self.caller(context.peer()))
        return b""

    async def quorum(self, data: bytes, context: Context) -> bytes:
        """Wait for the next quorum with the calling group."""
        try:
            member = protocol.decode_request(data)
        except MessageError as error:
            await self._refuse(context, error)
        replica_id = member.replica_id
        await self._make_room(replica_id, context)
        self.counters.requests += 1
        waiter = self._waiters.get(replica_id)
        if waiter is None:
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            waiter = self._waiters[replica_id] = _Waiter(member, answer)
        waiter.member = member
        waiter.calls += 1
        self._heartbeats.connections.note_request(replica_id, self.caller(context.peer()))
        self.electorate.request(member, self.now_s())
        self.advance()
        try:
            return await asyncio.shield(waiter.answer)
        except LighthouseError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        finally:
            waiter.calls -= 1
            if not waiter.calls and self._waiters.get(replica_id) is waiter:
                del self._waiters[replica_id]
                self.electorate.withdraw(replica_id)

    def now_s(self) -> float:
        """Return the time; exclude a time in which the process did not run from timeouts."""
        now_s = time.monotonic()
        asleep_s = now_s - self._awake_s - self._tick_s
        self._awake_s = now_s
        if asleep_s > _ASLEEP_S:
            _log.warning("did not run for %.1f s: no heartbeat timeout counts that time", asleep_s)
            self.electorate.exclude(asleep_s)
            self._heartbeats.exclude(asleep_s, now_s)
        return now_s

    async def tick(self) -> None:
        """Check periodically for ended groups and possible quorums."""
        while True:
            await asyncio.sleep(self._tick_s)
            self._heartbeats.look_for_ends()
            self.advance()
            self.on_change()

    def advance(self) -> None:
        """Form the next quorum if possible, and answer its members."""
        if self._is_closed:
            return
        now_s = self.now_s()
        quorum = self.electorate.form(now_s)
        if quorum is None:
            return
        before = self.last.ids if self.last else ()
        self.counters.joins += len({*quorum.ids}.difference(before))
        self.last, self.formed_s = quorum, now_s
        self.counters.quorums += 1
        winners = {r: self._waiters.pop(r).answer for r in quorum.ids if r in self._waiters}
        for waiter in self._waiters.values():  # groups that are not in it wait for the next
            self.electorate.request_again(waiter.member, now_s)
        if self._state is not None:
            task = asyncio.create_task(self._write_and_answer(quorum, winners, self._state))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        else:
            self._answer(quorum, winners)
        self.on_change()

    async def save(self) -> None:
        """Save the state for the next process; a failed write is logged."""
        state, saved = self._state, self.electorate.saved_state()
        if state is not None and state.differs(saved, self.epoch):
            await self._write(lambda: state.save(saved, self.epoch))

    async def _write_and_answer(
        self, quorum: Quorum, winners: dict[str, "asyncio.Future[bytes]"], state: StateFile
    ) -> None:
        # Without the saved state, another quorum would get this id after a restart; without the
        # saved answer, members that got it would wait for those that did not.
        await self.save()
        reply = protocol.reply(quorum)
        await self._write(lambda: state.save_reply(reply))
        self._answer(quorum, winners)

    async def _write(self, write: Callable[[], None]) -> None:
        """Wait for a write to the disk, but only once for one that hangs."""
        async with self._saving:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.ensure_future(asyncio.to_thread(write))
                self._writing.add_done_callback(lambda done: done.cancelled() or done.exception())
                wait_s = _SAVE_S
            else:
                wait_s = 0.0
            try:
                async with asyncio.timeout(wait_s):
                    await asyncio.shield(self._writing)
            except (StateError, TimeoutError) as error:
                self.counters.unsaved += 1
                why = str(error) or f"the disk took longer than {_SAVE_S:g} s"
                self._limited_log.add("save", f"continues without its state saved: {why}")

    def _answer(self, quorum: Quorum, winners: dict[str, "asyncio.Future[bytes]"]) -> None:
        if self.electorate.order:
            replies = dict(protocol.ordered_replies(quorum, self.electorate.order))
        else:
            replies = dict.fromkeys(quorum.ids, protocol.reply(quorum))
        for replica_id, answer in winners.items():
            if not answer.done():
                answer.set_result(replies[replica_id])

    def close(self) -> None:
        """Form no more quorums, and answer all calls, so that Managers log no broken call."""
        self._is_closed = True
        self._heartbeats.close()
        for waiter in self._waiters.values():
            if not waiter.answer.done():
                waiter.answer.set_exception(LighthouseError("the lighthouse ends"))

    def _end(self, replica_id: str) -> None:
        self.counters.lost += 1
        self.electorate.mark_lost(replica_id)
        self.advance()
        self.on_change()

    async def _refuse(self, context: Context, error: MessageError) -> NoReturn:
        self.counters.malformed += 1
        self._limited_log.add(error.args[0][:20], f"{self.caller(context.peer())}: {error}")
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, plain_line(str(error)))
        raise error

    async def _make_room(self, replica_id: str, context: Context) -> None:
        if self.electorate.has_room_for(replica_id, self.now_s()):
            return
        text = f"need at most {MAX_REPLICAS} replica groups at once"
        self._limited_log.add("full", f"{self.caller(context.peer())}: {text}")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
