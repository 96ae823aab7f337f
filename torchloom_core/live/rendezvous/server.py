"""Serve a rendezvous over TCP: one connection a worker, one JSON message a line."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from torchloom_core.floor.errors import LighthouseError, StateError
from torchloom_core.floor.files import write_whole
from torchloom_core.floor.first_done import first_done
from torchloom_core.floor.open_files import allow_files, most_connections
from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.live.rendezvous.followers import Followers, decode, line_of
from torchloom_core.live.rendezvous.known_worker import Send
from torchloom_core.live.rendezvous.rendezvous import Rendezvous
from torchloom_core.live.rendezvous.settings import Saved, Settings
from torchloom_core.wire.assignment import MAX_PARTS
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.generations import MAX_LINE, Begin, Halt, Join, Look, Stop
from torchloom_core.wire.planned_changes import Change

_log = logging.getLogger(__name__)
_TICK_S = 0.1
_BACKLOG_BYTES = 4 * MAX_LINE
"""Unsent bytes after which a worker that does not read is cut off."""

_MOST_CONNECTIONS = 2 * MAX_PARTS
_JOIN_S = 10.0
"""How long a connection may take to send its first message."""


class Service:
    """Connections of workers to a :class:`Rendezvous`.

    Parameters
    ----------
    state : Path, optional
        File from which an earlier process's generation is continued.

    Raises
    ------
    StateError
        If the file cannot be read, or is none of a rendezvous.
    """

    def __init__(self, settings: Settings, state: Path | None = None) -> None:
        self._state = state
        self.rendezvous = Rendezvous(
            settings, time.monotonic(), self._save, saved=_saved(state) if state else None
        )
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._followers = Followers(self.rendezvous, self._send)
        self._limited_log = RateLimitedLog(_log)
        self._connections = 0
        allow_files()
        self._most = most_connections(_MOST_CONNECTIONS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        worker = ""
        self._connections += 1
        try:
            self._admit()
            line = await asyncio.wait_for(reader.readline(), _JOIN_S)
            join = decode(line)
            if isinstance(join, Look):
                return await self._followers.serve(join, reader, writer)
            if not isinstance(join, Join):
                raise msgspec.ValidationError("need a join first")
            worker = self._take(join, writer)
            while worker and (line := await reader.readline()):
                message = decode(line)
                if self._writers.get(worker) is not writer:
                    return
                if isinstance(message, Join | Look | Change):
                    raise msgspec.ValidationError("need one join a connection")
                self._send(self.rendezvous.receive(worker, message, time.monotonic()))
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except asyncio.CancelledError:
            pass  # this process ends: asyncio would print it
        except (ValueError, *UNREADABLE) as error:  # ValueError: the line is too long
            text = plain_line(str(error))
            self._limited_log.add("cut off", f"{worker or 'a connection'} is cut off: {text}")
        finally:
            self._connections -= 1
            if worker and self._writers.get(worker) is writer:
                del self._writers[worker]
                self._send(self.rendezvous.end(worker, time.monotonic()))
            writer.close()

    def _admit(self) -> None:
        if self._connections > self._most:
            raise ValueError(f"need at most {self._most} connections, this is one more")

    def close(self) -> None:
        """Close all connections."""
        for writer in (*self._writers.values(), *self._followers.writers):
            writer.transport.abort()

    async def tick(self) -> None:
        """Look for silent workers, for ever."""
        late_s = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            if now_s - late_s < 5 * _TICK_S:  # else this process was asleep, and heard nobody
                self._send(self.rendezvous.tick(now_s))
            else:
                self.rendezvous.wake(now_s)
            late_s = now_s

    def _take(self, join: Join, writer: asyncio.StreamWriter) -> str:
        """Return the worker's name, or "" if it is refused."""
        if why := self.rendezvous.refusal(join):
            self._limited_log.add("refused", f"refused: {why}")
            writer.write(line_of(Halt(why=why, status="refused")))
            return ""
        earlier = self._writers.get(join.worker)
        self._writers[join.worker] = writer
        if earlier is not None:
            earlier.close()
        self._send(self.rendezvous.receive(join.worker, join, time.monotonic()))
        return join.worker

    def _send(self, sends: list[Send]) -> None:
        for worker, message in sends:
            writer = self._writers.get(worker)
            if writer is None:
                continue
            if message is None:
                del self._writers[worker]
                writer.close()
                continue
            writer.write(line_of(message))
            if writer.transport.get_write_buffer_size() > _BACKLOG_BYTES:
                _log.warning("%s does not read: its connection is closed", worker)
                writer.transport.abort()
        self._report(sends)
        self._followers.update(time.monotonic())

    def _report(self, sends: list[Send]) -> None:
        """Log each change once, however many it is sent to."""
        shown = {type(send.message): send.message for send in sends}
        for message in shown.values():
            match message:
                case Stop():
                    _log.info("generation %d stops: %s", message.generation, message.why)
                case Begin(assignment=chosen):
                    last, parts = message.committed, len(chosen.workers)
                    line = "generation %d: %s; %d workers, %d standbys, after step %d"
                    rest = len(chosen.standbys)
                    _log.info(line, chosen.generation, chosen.why, parts, rest, last)
                case Halt():
                    _log.info("%s: %s", message.status, message.why)

    def _save(self, saved: Saved | None) -> None:
        if self._state is None:
            return
        try:
            if saved is None:
                self._state.unlink(missing_ok=True)
            else:
                write_whole(self._state, msgspec.json.encode(saved))
        except (OSError, StateError) as error:
            self._limited_log.add("not saved", f"not saved, training continues: {error}")


async def serve(
    host: str, port: int, settings: Settings, state: Path | None, ready: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises
    ------
    LighthouseError
        If it cannot listen on the address.
    StateError
        If the state file is none of a rendezvous.
    """
    service = Service(settings, state)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        try:
            server = await asyncio.start_server(service.serve, host, port, limit=MAX_LINE)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise LighthouseError(f"--bind: cannot listen on {host}:{port}: {why}") from None
        await stack.enter_async_context(server)
        bound = server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        ready(f"Rendezvous is ready on {shown}:{bound}")
        await first_done(service.tick(), stop.wait())
        service.close()


def _saved(path: Path) -> Saved | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"--state {path}: cannot be read: {error.strerror}") from None
    with suppress(*UNREADABLE):
        return msgspec.json.decode(text, type=Saved)
    raise StateError(f"--state {path}: is no file of a rendezvous; move it away to begin anew")
