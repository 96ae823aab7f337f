"""The link: a daemon thread in the trainer that keeps a sidecar running and talks to it.

Everything that must survive a sidecar is kept here or in the loom: the credentials it enrolled
with, how far its telemetry came, and final acks the broker does not have yet.
"""

import contextlib
import logging
import os
import select
import subprocess
import threading
import time
from collections import deque

import msgspec

from torchloom_core.errors import MessageError
from torchloom_core.plain_text import RateLimitedLog
from torchloom_core.wire.messages import FINAL_STATUSES, Ack, Command, Hold, JoinFile, Note
from torchloom_threadlet.flight_recorder import collectives, flight_recorder
from torchloom_threadlet.identity import Join, read_join, wait_for_join
from torchloom_threadlet.ipc import (
    INCARNATION_OVER,
    Admission,
    Attach,
    Flight,
    FlightAsked,
    Goodbye,
    Heard,
    Keys,
    Sent,
    Stored,
    ToLink,
    Wire,
    for_link,
    pack,
)
from torchloom_threadlet.stacks import StackFile
from torchloom_threadlet.trainer.linked_trainer import Trainer
from torchloom_threadlet.trainer.sidecar_start import own_end, start_sidecar

_FLUSH_S = 0.1
_STARTS = 5
_LAST_WORDS_S = 0.5
_LONG_LIFE_S = 10.0
_SHORTEST_WAIT_S = 0.2
_LONGEST_WAIT_S = 30.0
_KEPT_NOTES = 256
_NO_WEAVER = JoinFile(url="", run="")

_logger = logging.getLogger(__name__)


class _NeverStartedError(EOFError):
    """The sidecar has ended by itself before it said anything."""


class SidecarLink:
    """Keeps one sidecar attached to ``trainer`` until stopped.

    Where there is no join file yet it looks for one, since the Weaver may be started later.

    Parameters
    ----------
    interpreter : str
        What runs the sidecar.
    """

    def __init__(self, trainer: Trainer, join: Join, interpreter: str) -> None:
        self._interpreter = interpreter
        self._trainer = trainer
        self._join_path = join[0]
        self._join = join[1] or _NO_WEAVER
        # Not in the link's thread: a child that is forked meanwhile would inherit a lock for ever.
        self._stack_file = StackFile()
        self._keys: Keys | None = None
        self._sent = Sent()
        self._has_spoken = False
        self._has_heard = False
        self._goodbye: Goodbye | None = None
        self._unstored: dict[tuple[str, int], Ack] = {}
        self._notes: deque[Note] = deque(maxlen=_KEPT_NOTES)
        self._limited_log = RateLimitedLog(_logger)
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        # Reentrant: a signal handler of the user's may close the loom in the midst of a send.
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchloom-link", daemon=True)

    @property
    def run(self) -> str:
        """The run that the worker belongs to, empty before its Weaver is known."""
        return self._join.run

    def start(self) -> None:
        """Start the thread, which starts the sidecar."""
        if self._join is _NO_WEAVER:
            hello = self._trainer.hello()
            does = "the standby waits" if hello.state == "standby" else "training starts"
            is_there = os.path.lexists(self._join_path)
            _logger.warning(
                "no Weaver yet at %s%s: %s, and %s enrols when the file is there",
                self._join_path,
                " (what lies there cannot be read as a join.json)" if is_there else "",
                does,
                hello.worker,
            )
            self._trainer.admitted("")
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end; the sidecar stays until the trainer's process ends."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        if self._join is _NO_WEAVER:  # else a sidecar may yet ask where the trainer hangs
            self._stack_file.close()

    def end_life(self) -> None:
        """Have the sidecar tell now that this life is over: another begins in this process."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(INCARNATION_OVER)

    def send(self, frame: msgspec.Struct) -> None:
        """Send a frame now, from any thread, without waiting for the sidecar."""
        with self._lock:
            if isinstance(frame, Ack) and frame.status in FINAL_STATUSES:
                self._unstored[frame.command, frame.epoch] = frame
            if isinstance(frame, Goodbye):
                self._goodbye = self._goodbye if self._goodbye and not frame.error else frame
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
        wait_s, in_vain = _SHORTEST_WAIT_S, 0
        if self._join is _NO_WEAVER:
            self._look_for_weaver()
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._serve()
            except (OSError, EOFError, MessageError) as error:
                if self._stopped.is_set():
                    break
                in_vain = in_vain + 1 if isinstance(error, _NeverStartedError) else 0
                if in_vain == _STARTS:
                    self._give_up(error)
                    return
                lived_s = time.monotonic() - started
                wait_s = _SHORTEST_WAIT_S if lived_s > _LONG_LIFE_S else wait_s
                if not in_vain:
                    _logger.warning(
                        "the sidecar is gone after %.1f s (%s); training goes on, next try in "
                        "%.1f s",
                        lived_s,
                        error,
                        wait_s,
                    )
                self._stopped.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                return
        with contextlib.suppress(OSError, MessageError):
            self._leave_word()

    def _look_for_weaver(self) -> None:
        """Wait until the join file is there, or the link is stopped."""
        join = wait_for_join(self._join_path, self._stopped)
        if join is not None:
            self._join = join
            worker = self._trainer.hello().worker
            _logger.warning("the Weaver has come: %s enrols in run %s", worker, self.run)

    def _give_up(self, error: Exception) -> None:
        _logger.warning(
            "%s is not watched: its sidecar does not start (%s; %s); training goes on. Set "
            "TORCHLOOM_PYTHON to an interpreter in which torchloom is installed",
            self._trainer.hello().worker,
            error,
            self._interpreter,
        )
        self._trainer.unlinked()

    def _serve(self) -> None:
        """Start a sidecar and talk to it until the link is stopped, and it has heard all.

        Raises
        ------
        EOFError, OSError, MessageError
            If the sidecar is gone, or is none.
        """
        self._has_spoken = self._has_heard = False
        process, wire = self._spawn()
        self._process = process
        try:
            self._attach(wire)
            poll = select.poll()
            while not self._stopped.is_set():
                self._exchange(poll, wire)
                if not wire.congested and (report := self._trainer.report()) is not None:
                    self._put(report, wire)
            self._say_the_rest(poll, wire)
        except EOFError as error:
            if not self._has_spoken and (why := own_end(process)):
                raise _NeverStartedError(why) from error
            raise
        finally:
            with self._lock:
                self._wire = None
            wire.close()
            if not self._stopped.is_set():
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def _exchange(self, poll: select.poll, wire: Wire) -> None:
        """Send and take what there is, or wait a little for it."""
        poll.register(wire, select.POLLIN | (select.POLLOUT if wire.waiting else 0))
        if poll.poll(_FLUSH_S * 1000):
            wire.push()
            for body in wire.receive():
                self._take(body, wire)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Wire]:
        # The kernel keeps the status of a process that is gone for whoever has opened it before.
        trainer = -1
        with contextlib.suppress(OSError, AttributeError):
            trainer = os.pidfd_open(os.getpid())
        try:
            stacks = self._stack_file.descriptors or (-1,)
            process, ours = start_sidecar(self._interpreter, (*stacks, trainer))
        finally:
            if trainer >= 0:
                os.close(trainer)
        return process, Wire(ours)

    def _attach(self, wire: Wire) -> None:
        if not self._is_known:  # the file may have been that of a Weaver of another run
            self._join = read_join(self._join_path) or self._join
        attach = Attach(
            hello=self._trainer.hello(),
            join=self._join,
            join_path=os.fsencode(self._join_path),
            keys=self._keys,
            sent=self._sent,
            stack_signal=self._stack_file.signal,
            link_thread=threading.get_native_id(),
            unset=self._trainer.unset,
        )
        with self._lock:
            wire.send(pack(attach))
            self._put(self._trainer.progress(), wire)
            for ack in self._unstored.values():
                self._put(ack, wire)
            while self._notes:
                self._put(msgspec.structs.replace(self._notes.popleft(), run=self.run), wire)
            self._wire = wire

    def _put(self, frame: msgspec.Struct, wire: Wire) -> None:
        try:
            wire.send(pack(frame))
        except MessageError as error:
            self._limited_log.add("out", f"not sent to the sidecar: {error}")

    def _take(self, body: bytes, wire: Wire) -> None:
        try:
            frame: ToLink = for_link(body)
        except MessageError as error:
            self._limited_log.add("in", f"dropped a {error}")
            return
        self._has_spoken = True
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
            case Heard():
                self._has_heard = True
            case FlightAsked():
                self._put(Flight(text=flight_recorder(), collectives=collectives()), wire)

    @property
    def _is_known(self) -> bool:
        """Whether the Weaver may know this life."""
        return self._sent.batches > 0 or (self._keys is not None and bool(self._keys.jwt))

    def _say_the_rest(self, poll: select.poll, wire: Wire) -> None:
        """Send what is still unsent, as long as that is short: the process is about to end.

        A sidecar that has started says that it has heard. One that was just killed does not.

        Raises
        ------
        EOFError
            If it is gone.
        """
        if (report := self._trainer.report()) is not None:
            self._put(report, wire)
        deadline = time.monotonic() + _LAST_WORDS_S
        while wire.waiting or (self._has_spoken and not self._has_heard):
            if time.monotonic() > deadline:
                return
            self._exchange(poll, wire)

    def _leave_word(self) -> None:
        """Have a sidecar of its own tell of this process's end; the one before is gone."""
        if not self._is_known:
            return
        self._has_spoken = False
        _, wire = self._spawn()
        try:
            self._attach(wire)
            self._put(self._goodbye or Goodbye(), wire)
            self._say_the_rest(select.poll(), wire)
        finally:
            with self._lock:
                self._wire = None
            wire.close()
