"""The link: a daemon thread in the trainer that keeps a sidecar running and talks to it.

Everything that must survive a sidecar is stored here or in the loom: its credentials, its
telemetry counters, and final acks that the broker lacks.
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

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire.commands import FINAL_STATUSES, Ack, Command
from torchloom_core.wire.messages import JoinFile, Note, PauseState
from torchloom_threadlet.flight_recorder import collectives, flight_recorder
from torchloom_threadlet.identity import Join, read_join, wait_for_join
from torchloom_threadlet.ipc import (
    INCARNATION_OVER,
    Admission,
    Attach,
    Flight,
    FlightRequest,
    Goodbye,
    GoodbyeReceived,
    Keys,
    Sent,
    Stored,
    ToLink,
    Wire,
    for_link,
    pack,
)
from torchloom_threadlet.stacks import StackFile
from torchloom_threadlet.trainer.command_inbox import rejection
from torchloom_threadlet.trainer.linked_trainer import Trainer
from torchloom_threadlet.trainer.sidecar_start import exit_reason, start_sidecar

_FLUSH_S = 0.1
_STARTS = 5
_FINAL_FLUSH_S = 0.5
_STABLE_S = 10.0
_SHORTEST_WAIT_S = 0.2
_LONGEST_WAIT_S = 30.0
_MOST_WAITING_NOTES = 256
_NO_WEAVER = JoinFile(url="", run="")

_logger = logging.getLogger(__name__)


class _NeverStartedError(EOFError):
    """The sidecar ended by itself before it sent anything."""


class SidecarLink:
    """Keeps one sidecar attached to ``trainer`` until stopped.

    Without a join file it waits for one, since the Weaver may be started later.
    """

    def __init__(self, trainer: Trainer, join: Join, interpreter: str) -> None:
        self._interpreter = interpreter
        self._trainer = trainer
        self._join_path = join[0]
        self._join = join[1] or _NO_WEAVER
        # Not in the link's thread: a child forked meanwhile would inherit a locked lock.
        self._stack_file = StackFile()
        self._keys: Keys | None = None
        self._sent = Sent()
        self._has_answered = False
        self._is_confirmed = False
        self._goodbye: Goodbye | None = None
        self._unstored: dict[tuple[str, int], Ack] = {}
        self._notes: deque[Note] = deque(maxlen=_MOST_WAITING_NOTES)
        self._limited_log = RateLimitedLog(_logger)
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: Wire | None = None
        # Reentrant: a user's signal handler may close the loom during a send.
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchloom-link", daemon=True)

    @property
    def run(self) -> str:
        """The worker's run, "" before its Weaver is known."""
        return self._join.run

    def start(self) -> None:
        """Start the thread, which starts the sidecar."""
        if self._join is _NO_WEAVER:
            hello = self._trainer.hello()
            does = "the standby waits" if hello.state == "standby" else "training starts"
            is_there = os.path.lexists(self._join_path)
            _logger.warning(
                "no Weaver yet at %s%s: %s, and %s enrols once the file exists",
                self._join_path,
                " (the file there is not a valid join.json)" if is_there else "",
                does,
                hello.worker,
            )
            self._trainer.admitted("")
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of the system's
            _logger.warning("%s trains without the Weaver: %s", self._trainer.hello().worker, error)
            self._trainer.unlinked()

    def stop(self) -> None:
        """End the thread; the sidecar stays until the trainer's process ends."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)
        if self._join is _NO_WEAVER:  # else a sidecar may still read the trainer's stacks
            self._stack_file.close()

    def end_incarnation(self) -> None:
        """Have the sidecar report this incarnation's end now: another begins in this process."""
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
        """Send a note that may be dropped; return whether it was sent or stored for a sidecar."""
        with self._lock:
            if self._wire is None:
                if len(self._notes) >= _MOST_WAITING_NOTES // 2:  # the rest is for other notes
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
                ran_s = time.monotonic() - started
                wait_s = _SHORTEST_WAIT_S if ran_s > _STABLE_S else wait_s
                if not in_vain:
                    _logger.warning(
                        "the sidecar ended after %.1f s (%s); training continues, "
                        "the next one starts in %.1f s",
                        ran_s,
                        error,
                        wait_s,
                    )
                self._stopped.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                return
        with contextlib.suppress(OSError, MessageError):
            self._report_end()

    def _look_for_weaver(self) -> None:
        """Wait until the join file exists, or the link is stopped."""
        join = wait_for_join(self._join_path, self._stopped)
        if join is not None:
            self._join = join
            worker = self._trainer.hello().worker
            _logger.warning("found the Weaver: %s enrols in run %s", worker, self.run)

    def _give_up(self, error: Exception) -> None:
        _logger.warning(
            "%s trains without the Weaver: its sidecar does not start (%s; %s). Set "
            "TORCHLOOM_PYTHON to an interpreter in which torchloom is installed",
            self._trainer.hello().worker,
            error,
            self._interpreter,
        )
        self._trainer.unlinked()

    def _serve(self) -> None:
        """Start a sidecar and exchange frames until the link is stopped and all is sent.

        Raises EOFError, OSError, MessageError if the sidecar is gone, or sends no valid frames.
        """
        self._has_answered = self._is_confirmed = False
        process, wire = self._spawn()
        self._process = process
        try:
            self._attach(wire)
            poll = select.poll()
            while not self._stopped.is_set():
                self._exchange(poll, wire)
                if not wire.congested and (report := self._trainer.report()) is not None:
                    self._put(report, wire)
            self._send_rest(poll, wire)
        except EOFError as error:
            if not self._has_answered and (why := exit_reason(process)):
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
        """Send and receive what is ready, or wait briefly for it."""
        poll.register(wire, select.POLLIN | (select.POLLOUT if wire.waiting else 0))
        if poll.poll(_FLUSH_S * 1000):
            wire.push()
            for body in wire.receive():
                self._take(body, wire)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Wire]:
        # With an open pidfd the kernel stores the exit status even of a reaped process.
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
        if not self._is_known:  # the file may have been one of another run's Weaver
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
            if (ack := rejection(body, str(error))) is not None:
                self.send(ack)
            else:
                self._limited_log.add("in", f"dropped a {error}")
            return
        self._has_answered = True
        match frame:
            case Command():
                self._trainer.deliver(frame)
            case PauseState():
                self._trainer.update_pause(frame)
            case Keys():
                self._keys = frame
            case Admission(unwanted=unwanted):
                self._trainer.admitted(unwanted)
            case Sent():
                self._sent = frame
            case Stored():
                with self._lock:
                    self._unstored.pop((frame.command, frame.epoch), None)
            case GoodbyeReceived():
                self._is_confirmed = True
            case FlightRequest():
                self._put(Flight(text=flight_recorder(), collectives=collectives()), wire)

    @property
    def _is_known(self) -> bool:
        """Whether the Weaver may know this incarnation."""
        return self._sent.batches > 0 or (self._keys is not None and bool(self._keys.jwt))

    def _send_rest(self, poll: select.poll, wire: Wire) -> None:
        """Send what is still unsent, within a short time: the process is about to end.

        A sidecar that has started confirms the goodbye; one that was just killed does not.

        Raises EOFError if the sidecar is gone.
        """
        if (report := self._trainer.report()) is not None:
            self._put(report, wire)
        deadline = time.monotonic() + _FINAL_FLUSH_S
        while wire.waiting or (self._has_answered and not self._is_confirmed):
            if time.monotonic() > deadline:
                return
            self._exchange(poll, wire)

    def _report_end(self) -> None:
        """Start a sidecar that reports this process's end; the one before is gone."""
        if not self._is_known:
            return
        self._has_answered = False
        _, wire = self._spawn()
        try:
            self._attach(wire)
            self._put(self._goodbye or Goodbye(), wire)
            self._send_rest(select.poll(), wire)
        finally:
            with self._lock:
                self._wire = None
            wire.close()
