"""Clients that look at a rendezvous: each gets its state, and may decide on planned changes."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from torchloom_core.live.rendezvous.known_worker import Send
from torchloom_core.live.rendezvous.rendezvous import Rendezvous
from torchloom_core.wire.generations import MAX_LINE, FromWorker, Look
from torchloom_core.wire.planned_changes import Change

_MOST = 16
_EVERY_S = 2.0
"""How often the state is sent if only measurements have changed."""

_BACKLOG_BYTES = MAX_LINE
"""Unsent bytes after which a client that does not read gets nothing more until it does."""

decode = msgspec.json.Decoder(FromWorker | Look | Change).decode
"""Read a message to a rendezvous; raises msgspec.DecodeError."""


class Followers:
    """The clients that follow a rendezvous, with a writer each.

    ``send`` sends messages to its workers.
    """

    def __init__(self, rendezvous: Rendezvous, send: Callable[[list[Send]], None]) -> None:
        self._rendezvous = rendezvous
        self._send = send
        self.writers: set[asyncio.StreamWriter] = set()
        self._seen: tuple[object, ...] = ()
        self._sent_s = 0.0

    async def serve(
        self, look: Look, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a client until its connection ends; one that does not follow gets one answer.

        Raises
        ------
        msgspec.DecodeError
            If it sends what is no message of a client.
        """
        self._take(look)
        writer.write(line_of(self._rendezvous.outlook()))
        if not look.follow:
            return
        if len(self.writers) >= _MOST:
            raise msgspec.ValidationError(f"need at most {_MOST} clients that follow")
        self.writers.add(writer)
        try:
            while line := await reader.readline():
                self._take(decode(line))
        finally:
            self.writers.discard(writer)

    def update(self, now_s: float) -> None:
        """Send the state to all, if it has changed or some seconds have passed."""
        if not self.writers:
            return
        seen = self._rendezvous.changes
        if seen == self._seen and now_s < self._sent_s + _EVERY_S:
            return
        self._seen, self._sent_s = seen, now_s
        line = line_of(self._rendezvous.outlook())
        for writer in self.writers:
            if writer.transport.get_write_buffer_size() < _BACKLOG_BYTES:
                writer.write(line)

    def _take(self, message: FromWorker | Look | Change) -> None:
        now_s = time.monotonic()
        match message:
            case Look(decides=decides):
                if decides:
                    self._rendezvous.planned.decided_by_client(now_s)
            case Change():
                self._send(self._rendezvous.change(message, now_s))
            case _:
                raise msgspec.ValidationError("need a look or a change from a client")


def line_of(message: object) -> bytes:
    """Return a message as one line."""
    return msgspec.json.encode(message) + b"\n"
