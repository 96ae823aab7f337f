"""A worker's connection to the rendezvous, served by a thread of its own."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.generations import (
    MAX_LINE,
    NO_EXPERTS,
    Beat,
    Begin,
    ExpertState,
    Fault,
    FromRendezvous,
    FromWorker,
    Halt,
    Join,
    Leave,
    Regroup,
    Stop,
    Stopped,
)

_log = logging.getLogger(__name__)
_BEAT_S = 0.5
_CONNECT_S = 5.0
_AGAIN_S = 0.2
_decode = msgspec.json.Decoder(FromRendezvous).decode


class Link(Protocol):
    """What a worker needs of a rendezvous."""

    @property
    def asked_for(self) -> int:
        """The generation to vote for, 0 for none."""

    def has_begun_after(self, generation: int) -> bool:
        """Return whether :meth:`begin_after` would return at once."""

    def begin_after(self, generation: int) -> Begin | Halt:
        """Wait for a later generation, or for the end of the program."""

    def report(self, message: Fault | Stopped) -> None:
        """Tell what became of the present generation."""

    def wait_for_end(self, generation: int) -> None:
        """Wait until the rendezvous has ended a generation."""

    def progress(
        self,
        generation: int,
        committed: int,
        layer_s: tuple[float, ...] = (),
        expert_state: ExpertState = NO_EXPERTS,
    ) -> None:
        """Tell how far the worker is, and what it has measured."""

    def retire(self) -> None:
        """Ask that the others go on without this worker."""

    def close(self, leave: Leave | None) -> None:
        """End the connection; with a message, on purpose."""


class RendezvousLink:
    """The connection, made again whenever it is lost.

    Parameters
    ----------
    address : str
        ``host:port``.
    join : Join
        The first message of each connection.
    on_stop : callable
        Called in the link's thread with the number of a generation that is over.
    """

    def __init__(self, address: str, join: Join, on_stop: Callable[[int], None]) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._join, self._on_stop = join, on_stop
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._report: Fault | Stopped | None = None
        self._begin: Begin | None = None
        self._halt: Halt | None = None
        self._stopped = self._asked = 0
        self._committed = join.committed
        self._layer_s: tuple[float, ...] = ()
        self._expert_state = NO_EXPERTS
        self._is_closed = False
        self._warned = False
        self._thread = threading.Thread(
            target=self._serve, name="torchloom-rendezvous", daemon=True
        )
        self._thread.start()
        threading.Thread(target=self._beat, name="torchloom-beat", daemon=True).start()

    @property
    def asked_for(self) -> int:
        """The generation to vote for, 0 for none; without a rendezvous nobody would begin it."""
        return self._asked if self._socket is not None else 0

    def has_begun_after(self, generation: int) -> bool:
        """Return whether :meth:`begin_after` would return at once."""
        with self._changed:
            return self._halt is not None or self._last_begun() > generation

    def begin_after(self, generation: int) -> Begin | Halt:
        """Wait for a later generation, or for the end of the program."""
        with self._changed:
            self._changed.wait_for(lambda: self._halt or self._last_begun() > generation)
            begun = self._begin
            if begun is not None and begun.assignment.generation > generation:
                return begun
            assert self._halt is not None
            return self._halt

    def report(self, message: Fault | Stopped) -> None:
        """Tell what became of the present generation; once more on a new connection."""
        with self._changed:
            self._report = message
        self._send(message)

    def wait_for_end(self, generation: int) -> None:
        """Wait until the rendezvous has ended a generation."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._halt or self._stopped >= generation or self._last_begun() > generation
            )

    def progress(
        self,
        generation: int,
        committed: int,
        layer_s: tuple[float, ...] = (),
        expert_state: ExpertState = NO_EXPERTS,
    ) -> None:
        """Tell how far the worker is, with the next heartbeat."""
        with self._changed:
            if generation != self._join.generation:
                self._join = msgspec.structs.replace(self._join, generation=generation)
                self._report = None
            self._committed = committed
            self._layer_s = layer_s or self._layer_s
            self._expert_state = expert_state

    def retire(self) -> None:
        """Ask that the others go on without this worker."""
        self._send(Leave(committed=self._committed, at_once=False))

    def close(self, leave: Leave | None) -> None:
        """End the connection; with a message, on purpose."""
        self._is_closed = True
        if leave is not None:
            self._send(leave)
        with self._changed, contextlib.suppress(OSError):  # it has just ended by itself
            if self._socket is not None:
                self._socket.close() if leave is None else self._socket.shutdown(socket.SHUT_WR)
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _last_begun(self) -> int:
        return self._begin.assignment.generation if self._begin is not None else 0

    def _send(self, message: FromWorker) -> None:
        with self._changed:
            opened = self._socket
        if opened is not None:
            try:
                with self._sending:
                    opened.sendall(msgspec.json.encode(message) + b"\n")
            except OSError as error:
                _log.debug("not sent to the rendezvous: %s", error)

    def _serve(self) -> None:
        while not self._is_closed and self._halt is None:
            try:
                with socket.create_connection(self._address, _CONNECT_S) as opened:
                    self._converse(opened)
            except (OSError, msgspec.DecodeError, MessageError) as error:
                if not self._warned and not self._is_closed:
                    host, port = self._address
                    _log.warning("no rendezvous at %s:%d, it is tried again: %s", host, port, error)
                    self._warned = True
            with self._changed:
                self._socket = None
            if not self._is_closed:
                time.sleep(_AGAIN_S)

    def _converse(self, opened: socket.socket) -> None:
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            first = [self._join, *([self._report] if self._report else ())]
            opened.sendall(b"".join(msgspec.json.encode(each) + b"\n" for each in first))
            self._socket, self._asked = opened, 0
        lines, has_answered = opened.makefile("rb"), False
        while line := lines.readline(MAX_LINE):
            self._receive(_decode(line))
            has_answered, self._warned = True, False
            if self._halt is not None:
                return
        if not has_answered:
            raise MessageError("the connection has ended without an answer")

    def _receive(self, message: FromRendezvous) -> None:
        if isinstance(message, Stop):
            self._on_stop(message.generation)
        with self._changed:
            match message:
                case Stop():
                    self._stopped = max(self._stopped, message.generation)
                case Regroup():
                    self._asked = message.next
                case Begin() if message.assignment.generation > self._last_begun():
                    self._begin = message
                case Halt():
                    self._halt = message
            self._changed.notify_all()
        if isinstance(message, Halt):
            self._on_stop(self._last_begun())

    def _beat(self) -> None:
        while not self._is_closed and self._halt is None:
            beat = Beat(
                committed=self._committed,
                layer_s=self._layer_s,
                expert_state=self._expert_state,
            )
            self._send(beat)
            time.sleep(_BEAT_S)
