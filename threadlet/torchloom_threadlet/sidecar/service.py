"""The service of one trainer's sidecar: its reports, its acks, its heartbeat, its end."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode_telemetry
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.endings import is_intended
from torchloom_core.wire.links import ProbeAddress
from torchloom_core.wire.messages import Exit, FieldValue, Hello, Note, PauseState
from torchloom_threadlet import ipc
from torchloom_threadlet.cleaning import fitting
from torchloom_threadlet.sidecar.collectors import Collection
from torchloom_threadlet.sidecar.commands import Commands
from torchloom_threadlet.sidecar.connection import Connection
from torchloom_threadlet.sidecar.hangs import Hangs, Overdue
from torchloom_threadlet.sidecar.joining import BROKER_ERRORS
from torchloom_threadlet.sidecar.operations import SidecarOperations
from torchloom_threadlet.sidecar.probing.listener import ProbeListener
from torchloom_threadlet.sidecar.process import (
    Process,
    close_stderr,
    give_up,
    seconds_from,
    wait_for_death,
)
from torchloom_threadlet.sidecar.publisher import Publisher, news
from torchloom_threadlet.sidecar.restarts import Restarts
from torchloom_threadlet.sidecar.roll_calls import RollCalls
from torchloom_threadlet.sidecar.stillness import Stillness
from torchloom_threadlet.sidecar.telemetry import Batches, gauges
from torchloom_threadlet.stacks import StackReader
from torchloom_threadlet.trainer.command_inbox import ack_of

_FINAL_FLUSH_S = 30.0
_LINK_END_S = 0.5
_KEPT_NS = 10_000_000_000
"""How old samples may become without a broker. Those of 10,000 workers come at once afterwards."""

_logger = logging.getLogger(__name__)


class Sidecar:
    """The sidecar from one attach to the trainer's end."""

    def __init__(self, attach: ipc.Attach, writer: asyncio.StreamWriter, process: Process) -> None:
        pid = process.pid
        hello = attach.hello
        self._hello = hello
        self._writer = writer
        self._process = process
        self.pid = pid
        self._interval_s = seconds_from("TORCHLOOM_HEARTBEAT_S", 1.0)
        self._restarts = Restarts(pid)
        self._has_ended = False
        self._error = ""
        self._closed = False
        self.stopped: Any = None
        self._urgent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribed_client: Client | None = None
        self._limited_log = RateLimitedLog(_logger)
        self._heartbeat = Batches(hello, attach.sent)
        self._overdue = Overdue()
        stacks = StackReader(pid, attach.stack_signal, process.stacks_fd, attach.link_thread)
        self._hangs = Hangs(
            self._heartbeat,
            pid,
            seconds_from("TORCHLOOM_HANG_AFTER_S", 300.0),
            stacks,
            self._to_link,
        )
        loop = asyncio.get_running_loop()
        self._stillness = Stillness(
            self._heartbeat,
            pid,
            stacks,
            lambda fields: loop.call_soon_threadsafe(self.note, "still", fields),
        )
        self._collection = Collection(
            pid, hello.node, self._interval_s, lambda fields: self.note("fault", fields)
        )
        self._uplink = Connection(
            hello,
            attach.join,
            Path(os.fsdecode(attach.join_path)),
            attach.keys,
            attach.unset,
            on_up=self._on_connected,
            on_keys=self._to_link,
            on_admission=lambda why: self._to_link(ipc.Admission(unwanted=why)),
        )
        identity = hello.run, hello.worker, hello.incarnation
        self._publisher = Publisher(self._uplink, *identity)
        self._probe_listener = ProbeListener(
            os.environ.get("TORCHLOOM_LINK_ADDRESS", ""), self._send_hello
        )
        self._operations = SidecarOperations(
            self, hello.incarnation, self._publisher, self._on_stored
        )
        self._roll_calls = RollCalls(hello.run, hello.worker, self._send_hello)
        self._commands = Commands(*identity, self._on_command, self._final)

    @property
    def worker(self) -> str:
        """The worker's id."""
        return self._hello.worker

    @property
    def probe_address(self) -> ProbeAddress | None:
        """Where it accepts probes, None where it accepts none."""
        return self._probe_listener.address

    async def run(self, reader: asyncio.StreamReader, unpacker: ipc.Unpacker) -> None:
        """Serve until the trainer ends, then report how."""
        listening = self._spawn(self._listen(reader, unpacker))
        parts = self._uplink, self._publisher, self._collection, self._stillness
        for run in (*(part.run for part in parts), self._probe_listener.run, self._beat):
            self._spawn(run())
        status = await self._end_of_incarnation()
        ended_ns = time.time_ns()
        self._has_ended = True
        close_stderr()
        if self._uplink.unwanted:
            return
        await asyncio.wait({listening}, timeout=_LINK_END_S)
        self._publisher.event(self._hello_now())  # the present Weaver may not know this worker
        left = self._heartbeat.latest.state == "left"
        self._publisher.event(
            Exit(
                run=self._hello.run,
                worker=self._hello.worker,
                incarnation=self._hello.incarnation,
                status=status,
                expected=left or is_intended(status, parted=self._closed, error=self._error),
                step=self._heartbeat.latest.step,
                error=self._error,
                ts_ns=ended_ns,
            )
        )
        if status is not None:
            async for restart in self._restarts.failed():
                self.note("restart", restart._asdict())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._publisher.finish(), _FINAL_FLUSH_S)
        await self._uplink.close()

    async def _end_of_incarnation(self) -> int | None:
        """Return the trainer's exit status; None if its process starts another incarnation."""
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(ipc.INCARNATION_OVER, over.set)
        death = asyncio.create_task(wait_for_death(self.pid, self._process.pidfd))
        closed = asyncio.create_task(over.wait())
        done, _ = await asyncio.wait({death, closed}, return_when=asyncio.FIRST_COMPLETED)
        return death.result() if death in done else None

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Without one of its parts a sidecar is useless: end, and the link starts another.
            give_up(error)

    # --- the trainer's side -----------------------------------------------------------------

    def _to_link(self, frame: msgspec.Struct) -> None:
        if self._writer.is_closing():
            return
        try:
            self._writer.write(ipc.pack(frame))
        except MessageError as error:
            self._limited_log.add("out", f"not sent to the trainer: {error}")

    async def _listen(self, reader: asyncio.StreamReader, unpacker: ipc.Unpacker) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for body in unpacker.feed(data):
                    await self.take(body)

    async def take(self, body: bytes) -> None:
        """Handle one frame from the trainer; an invalid one is dropped."""
        try:
            await self._execute(ipc.for_sidecar(body))
        except MessageError as error:
            self._limited_log.add("in", f"dropped a {error}")

    async def _execute(self, frame: ipc.ToSidecar) -> None:
        if isinstance(frame, Ack | Note | Hello) and _sender(frame) != _sender(self._hello):
            raise MessageError(
                f"frame from the trainer: need worker {self._hello.worker}, was {frame.worker}"
            )
        match frame:
            case ipc.Samples():
                if frame.gpu:
                    self._collection.use_gpu(frame.gpu)
                if self._heartbeat.take(frame):
                    self._hello = msgspec.structs.replace(self._hello, state=frame.state)
                    self._urgent.set()
            case Ack():
                self._overdue.end(frame)
                await self._final(frame)
            case Note():
                self._send_note(frame)
            case Hello():
                is_news = news(frame) != news(self._hello)
                self._hello = frame
                if is_news:
                    self._publisher.event(self._hello_now())
            case ipc.Flight():
                self._hangs.take(frame)
            case ipc.Goodbye():
                self._closed = True
                self._error = self._error or frame.error
                self._to_link(ipc.GoodbyeReceived())

    def _send_note(self, note: Note) -> None:
        cut = fitting(note)
        if cut is None:
            raise MessageError("note: too long for the broker even when cut")
        self._publisher.event(cut)

    # --- the Weaver's side ------------------------------------------------------------------

    async def _on_connected(self, client: Client) -> None:
        """Subscribe over a new connection, and send a hello."""
        if client is not self._subscribed_client:
            self._subscribed_client = client
            await self._commands.subscribe(client)
            await client.subscribe(subjects.roll_call(self._hello.run), cb=self._roll_calls.take)
            await client.subscribe(subjects.pause_state(self._hello.run), cb=self._on_pause_state)
        self._send_hello()

    def announce(self) -> None:
        """Report what the worker can do now."""
        self._send_hello()

    def _send_hello(self) -> None:
        if self._has_ended:  # this sidecar only watches torchrun's restarts
            return
        self._publisher.event(self._hello_now())
        self._urgent.set()

    async def _on_pause_state(self, message: Msg) -> None:
        with contextlib.suppress(MessageError):
            state = decode_json(PauseState, message.data, "pause state")
            if state.run == self._hello.run:
                self._roll_calls.record_epoch(state.epoch)
            self._to_link(state)

    async def _on_command(self, command: Command) -> None:
        self._roll_calls.record_epoch(command.epoch)
        step = self._heartbeat.latest.step
        if await self._operations.execute(command, step):
            return
        await self._publisher.ack(ack_of(command, "delivered", time.time_ns(), step))
        self._overdue.begin(command)
        self._to_link(command)

    async def _final(self, ack: Ack) -> None:
        await self._publisher.ack(ack, self._on_stored)

    def _on_stored(self, ack: Ack) -> None:
        self._to_link(ipc.Stored(command=ack.command, epoch=ack.epoch))

    def _hello_now(self) -> Hello:
        epoch = max(self._hello.epoch, self._roll_calls.epoch)
        return msgspec.structs.replace(
            self._hello,
            epoch=epoch,
            actuators=self._hello.actuators + self._operations.offered(),
            probe_address=self.probe_address,
            ts_ns=time.time_ns(),
        )

    # --- the heartbeat ----------------------------------------------------------------------

    async def _beat(self) -> None:
        hello = self._hello
        subject = subjects.telemetry(hello.run, hello.worker, hello.incarnation)
        while not self._has_ended:
            self._urgent.clear()
            client = self._uplink.settled_client
            if self._overdue:
                self._heartbeat.drop()  # the trainer hangs: it is not alive
            elif client is None:
                self._heartbeat.drop(before_ns=time.time_ns() - _KEPT_NS)
            else:
                with contextlib.suppress(*BROKER_ERRORS):
                    for batch in self._heartbeat.batches(self._gauges()):
                        await client.publish(subject, encode_telemetry(batch))
            if self.stopped is None:  # else nobody reads it
                self._to_link(self._heartbeat.sent)
            if self._hangs.is_news():
                self._spawn(self._note_hang())
            if (overrun := self._hangs.overrun()) is not None:
                self.note("phase_overrun", overrun)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), self._interval_s)

    def _gauges(self) -> dict[str, float]:
        state = gauges(self.pid, self._heartbeat.latest, time.monotonic_ns())
        return {**self._collection.gauges(), **state, **self._stillness.gauges()}

    async def _note_hang(self) -> None:
        self.note("hang", await self._hangs.evidence())

    def note(self, kind: str, fields: Mapping[str, FieldValue]) -> None:
        """Send an event to the Weaver."""
        self._send_note(
            Note(
                run=self._hello.run,
                worker=self._hello.worker,
                incarnation=self._hello.incarnation,
                kind=kind,
                step=self._heartbeat.latest.step,
                fields=dict(fields),
                ts_ns=time.time_ns(),
            )
        )


def _sender(message: Ack | Note | Hello) -> tuple[str, str]:
    return message.run, message.worker
