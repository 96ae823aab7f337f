"""The link: a daemon thread in the trainer that keeps a sidecar running and talks to it.

Everything that must survive a sidecar is kept here or in the loom: the credentials it enrolled
with, how far its telemetry came, and final acks the broker does not have yet.
"""

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from torchloom_core.errors import MessageError
from torchloom_core.plain_text import Complaints
from torchloom_core.wire.messages import FINAL_STATUSES, Ack, Command, Hello, Hold, JoinFile, Note
from torchloom_threadlet.flight_recorder import collectives, flight_recorder
from torchloom_threadlet.ipc import (
    Admission,
    Attach,
    Flight,
    FlightAsked,
    Keys,
    Samples,
    Sent,
    Stored,
    ToLink,
    Wire,
    for_link,
    pack,
)
from torchloom_threadlet.stacks import StackFile

_FLUSH_S = 0.1
_LONG_LIFE_S = 10.0
_SHORTEST_WAIT_S = 0.2
_LONGEST_WAIT_S = 30.0
_KEPT_NOTES = 256

_logger = logging.getLogger(__name__)


class Trainer(Protocol):
    """What the link asks of the loom."""

    def hello(self) -> Hello:
        """Return who the worker is and what it can do now."""

    def report(self) -> Samples | None:
        """Return progress and new samples, or None if there is nothing new."""

    def deliver(self, command: Command) -> None:
        """Take a command that has arrived."""

    def hear(self, hold: Hold) -> None:
        """Take what the Weaver says of the pause in force."""

    def admitted(self, unwanted: str) -> None:
        """Hear how enrolling ended."""


class SidecarLink:
    """Keeps one sidecar attached to ``trainer`` until stopped."""

    def __init__(self, trainer: Trainer, join: JoinFile, join_path: Path) -> None:
        self._trainer = trainer
        self._join = join
        self._join_path = join_path
        self._stack_file = StackFile()
        self._keys: Keys | None = None
        self._sent = Sent()
        self._unstored: dict[tuple[str, int], Ack] = {}
        self._notes: deque[Note] = deque(maxlen=_KEPT_NOTES)
        self._complaints = Complaints(_logger)
        self._wire: Wire | None = None
        # Reentrant: a signal handler of the user's may close the loom in the midst of a send.
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchloom-link", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the sidecar."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; the sidecar stays until the trainer's process ends."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def send(self, frame: msgspec.Struct) -> None:
        """Send a frame now, from any thread, without waiting for the sidecar."""
        with self._lock:
            if isinstance(frame, Ack) and frame.status in FINAL_STATUSES:
                self._unstored[frame.command, frame.epoch] = frame
            if self._wire is not None:
                self._put(frame, self._wire)
            elif isinstance(frame, Note):
                self._notes.append(frame)

    def send_if_idle(self, note: Note) -> bool:
        """Send what may as well be dropped; return whether it was sent or kept for a sidecar."""
        with self._lock:
            if self._wire is None:
                if len(self._notes) >= _KEPT_NOTES // 2:  # the rest is for what matters more
                    return False
            elif self._wire.congested:
                return False
            self.send(note)
            return True

    def _run(self) -> None:
        wait_s = _SHORTEST_WAIT_S
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._serve()
            except (OSError, EOFError, MessageError) as error:
                if self._stopped.is_set():
                    return
                lived_s = time.monotonic() - started
                wait_s = _SHORTEST_WAIT_S if lived_s > _LONG_LIFE_S else wait_s
                _logger.warning(
                    "the sidecar is gone after %.1f s (%s); training goes on, next try in %.1f s",
                    lived_s,
                    error,
                    wait_s,
                )
                self._stopped.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _serve(self) -> None:
        """Start a sidecar and talk to it until it goes or the link is stopped."""
        process, wire = self._spawn()
        try:
            self._attach(wire)
            poll = select.poll()
            while not self._stopped.is_set():
                poll.register(wire, select.POLLIN | (select.POLLOUT if wire.waiting else 0))
                if poll.poll(_FLUSH_S * 1000):
                    wire.push()
                    for body in wire.receive():
                        self._take(body, wire)
                if not wire.congested and (report := self._trainer.report()) is not None:
                    self._put(report, wire)
            self._say_the_rest(wire)
        finally:
            with self._lock:
                self._wire = None
            wire.close()
            if not self._stopped.is_set():
                process.kill()
                process.wait()

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Wire]:
        ours, theirs = socket.socketpair()
        stacks = self._stack_file.descriptors
        command = [sys.executable, "-P", "-m", "torchloom_threadlet.sidecar"]
        arguments = [str(number) for number in (theirs.fileno(), os.getpid(), *stacks)]
        with theirs:
            try:
                process = subprocess.Popen(
                    command + arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *stacks),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return process, Wire(ours)

    def _attach(self, wire: Wire) -> None:
        attach = Attach(
            hello=self._trainer.hello(),
            join=self._join,
            join_path=os.fsencode(self._join_path),
            keys=self._keys,
            sent=self._sent,
            stack_signal=self._stack_file.signal,
            link_thread=threading.get_native_id(),
        )
        with self._lock:
            wire.send(pack(attach))
            for ack in self._unstored.values():
                self._put(ack, wire)
            while self._notes:
                self._put(self._notes.popleft(), wire)
            self._wire = wire

    def _put(self, frame: msgspec.Struct, wire: Wire) -> None:
        try:
            wire.send(pack(frame))
        except MessageError as error:
            self._complaints.add("out", f"not sent to the sidecar: {error}")

    def _take(self, body: bytes, wire: Wire) -> None:
        try:
            frame: ToLink = for_link(body)
        except MessageError as error:
            self._complaints.add("in", f"dropped a {error}")
            return
        match frame:
            case Command():
                self._trainer.deliver(frame)
            case Hold():
                self._trainer.hear(frame)
            case Keys():
                self._keys = frame
            case Admission(unwanted=unwanted):
                self._trainer.admitted(unwanted)
            case Sent():
                self._sent = frame
            case Stored():
                with self._lock:
                    self._unstored.pop((frame.command, frame.epoch), None)
            case FlightAsked():
                self._put(Flight(text=flight_recorder(), collectives=collectives()), wire)

    def _say_the_rest(self, wire: Wire) -> None:
        """Send what is still unsent, for at most a second: the process is about to end."""
        if (report := self._trainer.report()) is not None:
            self._put(report, wire)
        deadline = time.monotonic() + 1.0
        poll = select.poll()
        poll.register(wire, select.POLLOUT)
        while wire.waiting and time.monotonic() < deadline:
            poll.poll(_FLUSH_S * 1000)
            wire.push()
