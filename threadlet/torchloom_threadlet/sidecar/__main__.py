"""The sidecar: a process beside the trainer that talks to the Weaver for it.

Started by the link with ``SOCKET_FD TRAINER_PID [STACKS_FD [TRAINER_PIDFD]]``; it ends when the
trainer's process has ended and the Weaver has the report of it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_pause_state, encode_telemetry
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.endings import is_intended
from torchloom_core.wire.messages import Exit, FieldValue, Hello, Note
from torchloom_core.wire.operations import Probe, Terminate
from torchloom_threadlet import ipc
from torchloom_threadlet.cleaning import fitting
from torchloom_threadlet.sidecar.collectors import Collection
from torchloom_threadlet.sidecar.commands import Commands
from torchloom_threadlet.sidecar.connection import BROKER_ERRORS, Connection, OtherRunError
from torchloom_threadlet.sidecar.exit_status import wait_for_death
from torchloom_threadlet.sidecar.hangs import Hangs
from torchloom_threadlet.sidecar.overdue import Overdue
from torchloom_threadlet.sidecar.probing.commands import Probing
from torchloom_threadlet.sidecar.probing.listener import ProbeListener
from torchloom_threadlet.sidecar.publisher import Publisher
from torchloom_threadlet.sidecar.restarts import Restarts
from torchloom_threadlet.sidecar.roll_calls import RollCalls
from torchloom_threadlet.sidecar.stillness import Stillness
from torchloom_threadlet.sidecar.telemetry import Batches
from torchloom_threadlet.sidecar.termination import Termination
from torchloom_threadlet.sidecar.trainer_state import gauges
from torchloom_threadlet.stacks import StackReader

_FINAL_FLUSH_S = 30.0
_LINK_END_S = 0.5
_logger = logging.getLogger(__name__)


class Process(NamedTuple):
    """The trainer's process: its id, and what was inherited from it, -1 for nothing.

    Attributes
    ----------
    stacks_fd : int
        Where its stacks are written.
    pidfd : int
        A pidfd of the trainer itself, through which its exit status can be read at any time.
    """

    pid: int
    stacks_fd: int = -1
    pidfd: int = -1


class Sidecar:
    """The sidecar from one attach to the trainer's end."""

    def __init__(self, attach: ipc.Attach, writer: asyncio.StreamWriter, process: Process) -> None:
        pid = process.pid
        hello = attach.hello
        self._hello = hello
        self._writer = writer
        self._process = process
        self._pid = pid
        self._interval_s = _seconds("TORCHLOOM_HEARTBEAT_S", 1.0)
        self._restarts = Restarts(pid)
        self._has_ended = False
        self._is_introduced = False
        self._error = ""
        self._closed = False
        self._urgent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None
        self._subscribed_client: Client | None = None
        self._limited_log = RateLimitedLog(_logger)
        self._heartbeat = Batches(hello, attach.sent)
        self._overdue = Overdue()
        self._overrun_ns = 0
        stacks = StackReader(pid, attach.stack_signal, process.stacks_fd, attach.link_thread)
        self._hangs = Hangs(
            self._heartbeat,
            pid,
            _seconds("TORCHLOOM_HANG_AFTER_S", 300.0),
            stacks,
            self._to_link,
        )
        loop = asyncio.get_running_loop()
        self._stillness = Stillness(
            self._heartbeat,
            pid,
            stacks,
            lambda fields: loop.call_soon_threadsafe(self._note, "still", fields),
        )
        self._collection = Collection(pid, hello.node, self._interval_s)
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
        self._termination = Termination(pid, hello.incarnation, self._publisher, self._on_stored)
        self._probe_listener = ProbeListener(
            os.environ.get("TORCHLOOM_LINK_ADDRESS", ""), self._send_hello
        )
        self._probing = Probing(
            hello.incarnation,
            self._publisher,
            lambda: self._probe_listener.address is not None,
            self._on_stored,
        )
        self._roll_calls = RollCalls(hello.run, hello.worker, self._send_hello)
        self._commands = Commands(*identity, self._on_command)

    async def run(self, reader: asyncio.StreamReader, unpacker: ipc.Unpacker) -> None:
        """Serve until the trainer ends, then report how."""
        listening = self._spawn(self._listen(reader, unpacker))
        parts = self._uplink, self._publisher, self._collection, self._stillness
        for run in (*(part.run for part in parts), self._probe_listener.run, self._beat):
            self._spawn(run())
        status = await self._end_of_incarnation()
        self._has_ended = True
        _close_stderr()
        if self._uplink.unwanted:
            return
        await asyncio.wait({listening}, timeout=_LINK_END_S)
        if not self._is_introduced:
            self._publisher.event(self._hello_now())  # it ended before there was a connection
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
                ts_ns=time.time_ns(),
            )
        )
        if status is not None:
            async for restart in self._restarts.failed():
                self._note("restart", restart.fields())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._publisher.finish(), _FINAL_FLUSH_S)
        await self._uplink.close()

    async def _end_of_incarnation(self) -> int | None:
        """Return the trainer's exit status; None if its process starts another incarnation."""
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(ipc.INCARNATION_OVER, over.set)
        death = asyncio.create_task(wait_for_death(self._pid, self._process.pidfd))
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
            _give_up(error)

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
                if self._heartbeat.take(frame):
                    self._hello = msgspec.structs.replace(self._hello, state=frame.state)
                    self._urgent.set()
            case Ack():
                self._overdue.end(frame)
                await self._publisher.ack(frame, self._on_stored)
            case Note():
                self._send_note(frame)
            case Hello():
                is_news = _news(frame) != _news(self._hello)
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
        """Set up a new connection: send a hello, subscribe to roll calls, pull commands."""
        if client is not self._subscribed_client:
            self._subscribed_client = client
            await client.subscribe(subjects.roll_call(self._hello.run), cb=self._roll_calls.take)
            await client.subscribe(subjects.pause_state(self._hello.run), cb=self._on_pause_state)
        if self._pulling is not None:
            # A long poll from before the broker's restart would wait for its timeout.
            self._pulling.cancel()
        self._pulling = self._spawn(self._commands.pull(client))
        self._send_hello()

    def _send_hello(self) -> None:
        if self._has_ended:  # this sidecar only watches torchrun's restarts
            return
        self._is_introduced = True
        self._publisher.event(self._hello_now())
        self._urgent.set()

    async def _on_pause_state(self, message: Msg) -> None:
        with contextlib.suppress(MessageError):
            state = decode_pause_state(message.data)
            if state.run == self._hello.run:
                self._roll_calls.record_epoch(state.epoch)
            self._to_link(state)

    async def _on_command(self, command: Command) -> None:
        self._roll_calls.record_epoch(command.epoch)
        if isinstance(command.do, Terminate):
            await self._termination.execute(command, self._heartbeat.latest.step)
            return
        if isinstance(command.do, Probe):
            await self._probing.execute(command, command.do, self._heartbeat.latest.step)
            return
        await self._publisher.ack(
            Ack(
                command=command.id,
                run=command.run,
                worker=command.worker,
                incarnation=command.incarnation,
                epoch=command.epoch,
                status="delivered",
                step=self._heartbeat.latest.step,
                ts_ns=time.time_ns(),
            )
        )
        self._overdue.begin(command)
        self._to_link(command)

    def _on_stored(self, ack: Ack) -> None:
        self._to_link(ipc.Stored(command=ack.command, epoch=ack.epoch))
        self._spawn(self._commands.settled(ack))

    def _hello_now(self) -> Hello:
        epoch = max(self._hello.epoch, self._roll_calls.epoch)
        hello = msgspec.structs.replace(self._hello, epoch=epoch, ts_ns=time.time_ns())
        if self._probe_listener.address is None:
            return hello
        able = (*hello.actuators, "probe")
        return msgspec.structs.replace(
            hello, actuators=able, probe_address=self._probe_listener.address
        )

    # --- the heartbeat ----------------------------------------------------------------------

    async def _beat(self) -> None:
        hello = self._hello
        subject = subjects.telemetry(hello.run, hello.worker, hello.incarnation)
        while not self._has_ended:
            self._urgent.clear()
            client = self._uplink.client
            if client is None or self._overdue:
                self._heartbeat.drop()  # no broker, or the trainer hangs: it is not alive
            else:
                with contextlib.suppress(*BROKER_ERRORS):
                    for batch in self._heartbeat.batches(self._gauges()):
                        await client.publish(subject, encode_telemetry(batch))
            self._to_link(self._heartbeat.sent)
            if self._hangs.is_news():
                self._spawn(self._note_hang())
            self._note_overrun()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), self._interval_s)

    def _gauges(self) -> dict[str, float]:
        state = gauges(self._pid, self._heartbeat.latest, time.monotonic_ns())
        return {**self._collection.gauges(), **state, **self._stillness.gauges()}

    async def _note_hang(self) -> None:
        self._note("hang", await self._hangs.evidence())

    def _note_overrun(self) -> None:
        """Report once each named phase that exceeds its bound."""
        latest = self._heartbeat.latest
        phase, now_ns = latest.named, time.monotonic_ns()
        if phase is None or now_ns <= phase.until_ns or phase.since_ns == self._overrun_ns:
            return
        self._overrun_ns = phase.since_ns
        at_most_s = (phase.until_ns - phase.since_ns) / 1e9
        self._note("phase_overrun", {"phase": phase.name, "at_most_s": at_most_s})

    def _note(self, kind: str, fields: Mapping[str, FieldValue]) -> None:
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


def _news(hello: Hello) -> tuple[object, ...]:
    """Return what is sent to the Weaver at once when it has changed.

    Of values only those that all ranks share: a peer may have set them. A value that a command set
    on this worker alone is in the command's ack.
    """
    fenced = [hello.values.get(spec.name) for spec in hello.knobs if spec.fence == "run"]
    return (
        hello.knobs,
        hello.actuators,
        hello.tries,
        hello.replica_id,
        hello.quorum_id,
        hello.resumes,
        fenced,
    )


async def serve(descriptor: int, process: Process) -> None:
    """Read the attach frame from the trainer, then be its sidecar."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    unpacker = ipc.Unpacker()
    first: list[bytes] = []
    while not first:
        data = await reader.read(1 << 16)
        if not data:
            return
        first = unpacker.feed(data)
    attach = ipc.for_sidecar(first[0])
    if not isinstance(attach, ipc.Attach):
        raise MessageError(f"need an attach frame first, was {type(attach).__name__}")
    sidecar = Sidecar(attach, writer, process)
    for body in first[1:]:
        await sidecar.take(body)
    await sidecar.run(reader, unpacker)


def main() -> None:
    """Run the sidecar of the trainer named on the command line."""
    # A signal that ends the trainer often goes to its whole job; the sidecar has to report the end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=os.environ.get("TORCHLOOM_LOG", "WARNING"),
        format="torchloom sidecar: %(levelname)s: %(message)s",
    )
    descriptor, *process = (int(argument) for argument in sys.argv[1:])
    asyncio.run(_serve_and_exit(descriptor, Process(*process)))


async def _serve_and_exit(descriptor: int, process: Process) -> None:
    try:
        await serve(descriptor, process)
    except Exception as error:  # noqa: BLE001 - whatever it is, the link starts another
        _give_up(error)
    # A collector may hang in a driver's call; waiting for its thread would never end.
    os._exit(0)


def _give_up(error: BaseException) -> None:
    if isinstance(error, MessageError | OtherRunError):
        _logger.error("the sidecar ends: %s", plain_line(str(error)))
    else:
        _logger.error("the sidecar ends because of an internal error", exc_info=error)
    os._exit(1)


def _sender(message: Ack | Note | Hello) -> tuple[str, str]:
    return message.run, message.worker


def _close_stderr() -> None:
    """Close the trainer's stderr: its reader waits for its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if seconds > 0:
        return seconds
    _logger.warning("%s: need a number of seconds > 0, was %r", variable, text)
    return default


if __name__ == "__main__":
    main()
