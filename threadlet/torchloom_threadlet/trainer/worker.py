"""The worker as its Weaver sees it: its state, its commands and its reports.

The training thread enters through :class:`~torchloom_threadlet.loom.Loom`, at step
boundaries; the link's thread through :meth:`Worker.deliver`, :meth:`Worker.report` and
:meth:`Worker.hello`.
"""

import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.commands import RECONCILE, AckStatus, Command
from torchloom_core.wire.limits import MAX_SHORT_TEXT, MAX_TEXT, KnobValue
from torchloom_core.wire.messages import LOG, Hello, Note, PauseState, WorkerState
from torchloom_core.wire.operations import (
    Checkpoint,
    Cut,
    Drain,
    Dump,
    FencedChange,
    Join,
    Pause,
    Prepare,
    Rehearse,
    Resume,
    Rewind,
    SetKnob,
    SetKnobs,
    StandbyTask,
    Survey,
    Withdraw,
    WriteLog,
    done_by,
)
from torchloom_threadlet import ipc
from torchloom_threadlet.cleaning import field_name, fields, text, whole
from torchloom_threadlet.flight_recorder import collectives, flight_recorder
from torchloom_threadlet.identity import Identity
from torchloom_threadlet.identity import Join as JoinPlace
from torchloom_threadlet.launch import launch_of
from torchloom_threadlet.stacks import own_stacks
from torchloom_threadlet.trainer.actuators import Actuators
from torchloom_threadlet.trainer.changes import Changes
from torchloom_threadlet.trainer.command_inbox import CommandInbox
from torchloom_threadlet.trainer.compilations import Compilations
from torchloom_threadlet.trainer.pause_lease import PauseLease
from torchloom_threadlet.trainer.phases import Phases
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer
from torchloom_threadlet.trainer.sidecar_link import SidecarLink
from torchloom_threadlet.trainer.sidecar_start import find_interpreter
from torchloom_threadlet.trainer.standby_tasks import StandbyTaskRunner, StandbyTasks

_SAVE_S = 600.0
"""The bound of the named phase in which a script's function saves or rewinds, in seconds."""

_logger = logging.getLogger(__name__)

_FIRST_STEP = 1
"""The largest number of a first step that needs no checkpoint."""


class Worker:
    """One incarnation of one worker.

    Attributes
    ----------
    step : object
        The number of the last step, as the training loop passed it.
    going : bool
        False once the worker has been drained.
    has_pending : bool
        Whether the training thread has to call :meth:`execute_pending` at its next step boundary.
    changes : Changes
        The changes that all ranks make at the same step.
    rewinds : int
        How often the worker has rewound.
    lease : PauseLease
        How long a pause lasts.
    replica_id : str
        The lighthouse's name for this incarnation of the group, where an adapter knows it.
    phases : Phases
        What the trainer waits for, where an adapter records it, and its named phase.
    thread : int
        The training thread, as :func:`threading.get_ident` names it; 0 where there are several.
    agreed_step : callable, optional
        Returns the step number that all groups agree on, where ``step`` may differ.
    """

    def __init__(
        self,
        identity: Identity,
        join: JoinPlace | None,
        framework: str,
        *,
        held: bool,
        standby_tasks: StandbyTasks | None = None,
    ) -> None:
        self.identity = identity
        interpreter = find_interpreter() if join else ""
        self.state: WorkerState = "standby" if identity.standby and interpreter else "joining"
        self.step: Any = -1
        self.going = True
        self.has_pending = True
        self.samples = SampleBuffer()
        self.rewinds = 0
        self.changes = Changes(self._settle)
        self.actuators = Actuators(
            standby=identity.standby,
            held=held,
            can_agree=lambda: self.changes.can_vote,
            standby_tasks=standby_tasks,
        )
        self.lease = PauseLease()
        self.replica_id = ""
        self.phases = Phases()
        self.thread = 0
        self.agreed_step: Callable[[], object] | None = None
        self._launch, self._resumes = launch_of()
        self._framework = framework
        self._entered_ns = time.monotonic_ns()
        self._compilations = Compilations(self.phases, lambda: self.send(self.progress()))
        self._reported: tuple[object, ...] | None = None
        self._pending: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._inbox = CommandInbox(identity.incarnation, self._refusal)
        self._inbox_lock = threading.Lock()
        self._refusals: dict[str, str | None] = {}
        self._closed = False
        self._unwanted = ""
        self._awaits_decision = False
        self._admission = threading.Event()
        self._link = SidecarLink(self, join, interpreter) if join and interpreter else None
        self._is_lost = False

    @property
    def linked(self) -> bool:
        """Whether there is a Weaver, or may be later."""
        return self._link is not None and not self._is_lost

    @property
    def unset(self) -> str:
        """What to set so that no other process gets this worker's name."""
        return self.identity.unset

    @property
    def _run(self) -> str:
        return self._link.run if self._link is not None else ""

    def start(self) -> None:
        """Start the link."""
        if self._link is not None:
            self._link.start()

    def close(self) -> None:
        """Say goodbye and stop the link; no command is carried out afterwards."""
        self._closed = True
        self._pending.put(None)
        self.send(ipc.Goodbye())
        if self._link is not None:
            self._link.stop()

    def end_incarnation(self) -> None:
        """Have the end of this incarnation reported now, though the process continues."""
        if self._link is not None:
            self._link.end_incarnation()

    def send(self, frame: msgspec.Struct) -> None:
        """Send a frame to the sidecar, if there is one."""
        if self._link is not None:
            self._link.send(frame)

    def note(self, kind: str, details: Mapping[str, Any]) -> None:
        """Send an event to the Weaver."""
        self.send(self._note(kind, details))

    def log(self, line: Mapping[str, Any]) -> bool:
        """Send a line of the trainer's log if the link is idle; return whether it was sent."""
        return self._link is not None and self._link.send_if_idle(self._note(LOG, line))

    def _note(self, kind: str, details: Mapping[str, Any]) -> Note:
        return Note(
            run=self._run,
            worker=self.identity.worker,
            incarnation=self.identity.incarnation,
            kind=field_name(kind),
            step=whole(self.step),
            fields=fields(details),
            ts_ns=time.time_ns(),
        )

    # --- the link's thread ------------------------------------------------------------------

    def hello(self) -> Hello:
        """Return the worker's identity and what it can do now."""
        placement = msgspec.structs.asdict(self.identity.placement) | {"run": self._run}
        return Hello(
            **placement,
            worker=self.identity.worker,
            incarnation=self.identity.incarnation,
            labels=self.identity.labels,
            host=text(socket.gethostname(), MAX_SHORT_TEXT),
            pid=os.getpid(),
            state=self.state,
            knobs=self.actuators.specs,
            values=self.actuators.values,
            actuators=self.actuators.names,
            tries=self.actuators.tries,
            launch=self._launch,
            resumes=self._resumes,
            framework=text(self._framework, MAX_SHORT_TEXT),
            replica_id=text(self.replica_id, MAX_SHORT_TEXT),
            quorum_id=self.phases.quorum_id,
            epoch=self._inbox.highest_epoch,
            ts_ns=time.time_ns(),
        )

    def report(self) -> ipc.Samples | None:
        """Return progress and new samples, or None if nothing changed since the last report."""
        self._compilations.look()
        rows = self.samples.take(self._entered_ns)
        phase = self.phases.present()
        now = (self.state, self._entered_ns, phase, self.phases.named())
        # A wait is reported again and again: without confirmation it counts as over.
        waits = phase is not None and phase.name != ipc.COMPUTE
        if not rows and not waits and now == self._reported:
            return None
        self._reported = now
        return self._progress(rows)

    def progress(self) -> ipc.Samples:
        """Return the state and the last step, without any samples."""
        return self._progress([])

    def deliver(self, command: Command) -> None:
        """Acknowledge a command, and queue it for the training thread if it is to be done."""
        if isinstance(command.do, FencedChange):
            # Checked without the lock: a user's function may be slow.
            refusal = self.actuators.refusal(command.do, self.state)
            self._refusals = {command.id: refusal}
        with self._inbox_lock:
            ack, do = self._inbox.receive(command, time.time_ns(), whole(self.step))
        self.send(ack)
        if not do:
            return
        if isinstance(command.do, FencedChange):
            self.changes.offer(command, command.do)
        elif isinstance(command.do, Dump | Cut | Withdraw | WriteLog):
            self._execute(command)
        elif isinstance(command.do, Join) and self.actuators.prepared:
            self._execute(command)  # the training thread may still be creating its Manager
            self._pending.put(None)  # so that it looks again
        else:
            self._pending.put(command)
            self.has_pending = True

    def update_pause(self, state: PauseState) -> None:
        """Extend or end a pause, as the Weaver reports."""
        with self._inbox_lock:
            if state.run != self._run or not self._inbox.accepts(state.epoch):
                return
            self.lease.update(state, time.monotonic())
        if state.over:
            self.changes.cancel(state.over)
        if self.state == "paused":
            self._pending.put(None)  # so that the training thread looks again

    def admitted(self, unwanted: str) -> None:
        """Take the reason why this worker is not admitted on its node; "" if there is none."""
        # Logged once: the text contains the number of other workers, which changes.
        if unwanted and not self._unwanted and not self._awaits_decision:
            _logger.warning("%s trains without the Weaver: %s", self.identity.worker, unwanted)
        self._unwanted = unwanted
        self._admission.set()

    def unlinked(self) -> None:
        """Continue without a Weaver: a standby would wait for ever."""
        self._is_lost = True
        if self.state == "standby":
            self.state = "joining"
        self._admission.set()
        self._pending.put(None)

    # --- the training thread ----------------------------------------------------------------

    def wait_until_admitted(self, timeout_s: float) -> str:
        """Wait for the Weaver's decision; return why this worker is not admitted, or ""."""
        self._awaits_decision = True
        self._admission.wait(timeout_s)
        self._awaits_decision = False
        return self._unwanted

    def enter(self, state: WorkerState) -> None:
        """Change the state, and report it at once."""
        self._entered_ns = time.monotonic_ns()
        self.state = state
        self.send(self.progress())

    @contextmanager
    def phase(self, name: str, at_most_s: float) -> Iterator[None]:
        """Be in a named phase; with an invalid bound a warning is logged instead."""
        entered = None
        try:
            entered = self.phases.enter(name, at_most_s)
        except ValueError as error:
            _logger.warning("%s: %s; the phase is not reported", self.identity.worker, error)
        if entered is not None:
            self.send(self.progress())  # the work that follows may hold the GIL
        try:
            yield
        finally:
            if entered is not None:
                self.phases.leave(entered)

    def wait_to_join(self) -> None:
        """Carry out commands in the calling thread until a standby joins or leaves.

        Returns on the first ``prepare`` as well: the standby has to make its Manager then.
        """
        prepared = self.actuators.prepared
        while self.state == "standby" and self.actuators.prepared == prepared and not self._closed:
            if (command := self._pending.get()) is not None:
                self._execute(command)

    def execute_pending(self) -> None:
        """Carry out pending commands at this step boundary."""
        # Cleared first: a command that arrives meanwhile sets it again.
        self.has_pending = False
        if self.state == "joining":
            self.enter("training")
        if self._resumes is None:
            self._resumes = whole(self.step) > _FIRST_STEP
            self.send(self.hello())
        self.make_due()
        while not self._pending.empty():
            if (command := self._pending.get()) is not None:
                self._execute(command)
        while self.state == "paused" and not self._closed:
            self._wait_in_pause()

    def _wait_in_pause(self) -> None:
        """Wait for a command or for the pause's end, and act on it."""
        with self._inbox_lock:
            now_s = time.monotonic()
            left_s = self.lease.left_s(now_s)
            why = self.lease.end(now_s) if left_s <= 0 else ""
        if left_s > 0:
            try:
                command = self._pending.get(timeout=min(left_s, threading.TIMEOUT_MAX))
            except queue.Empty:
                return
            if command is not None:
                self._execute(command)
            return
        self.enter("training")
        if why:
            _logger.warning("%s resumes: its pause ended by itself, %s", self.identity.worker, why)
            self.note("pause_over", {"why": why})

    def make_due(self, *, knobs_only: bool = False) -> None:
        """Make the change that was agreed on in the step that is over, if any."""
        change = self.changes.due
        if change is None or change.do is None:
            return
        operation = done_by(change.do, self.identity.placement.group)
        if knobs_only and not isinstance(operation, SetKnobs | None):
            return
        step = whole(self.agreed_step() if self.agreed_step is not None else self.step)
        before: dict[str, KnobValue] = {}
        detail = "" if operation is not None else "agreed; nothing to do in this group"
        try:
            match operation:
                case SetKnobs(values=values):
                    before = self.actuators.set_knobs(values)
                case Pause():
                    detail = self._pause(change.cause)
                case Drain():
                    self._leave()
                case Rewind(skip=skip):
                    with self.phase("rewind", _SAVE_S):
                        for rewind in self.actuators.rewind:
                            rewind(skip)
                    self.rewinds += 1
        except Exception as error:  # noqa: BLE001 - the user's functions run in here
            self.changes.failed(change, step, error_line(error))
            _logger.warning("change %d failed: %s", change.number, error_line(error))
            if isinstance(operation, Rewind):
                self.changes.lose_state()  # the rewind may be half done
        else:
            self.changes.made(change, before, step, detail)
        if isinstance(operation, SetKnobs):
            self.send(self.hello())

    def set_back(self) -> None:
        """Roll back a change that some rank failed to make, before the ranks reduce anything.

        Raises
        ------
        SystemExit
            If that fails, too: this rank would differ from the others.
        """
        values = self.changes.before
        self.actuators.set_back(values)
        self.changes.undone()
        worker = self.identity.worker
        _logger.warning("%s: rolled back to %s: the change failed on a rank", worker, values)
        self.send(self.hello())

    def take_over(self, standing: str) -> None:
        """Take over a peer's knobs with its state, before the state is loaded.

        Raises
        ------
        SystemExit
            If that fails: this rank would differ from the others.
        """
        values, present = self.changes.inherit(standing), self.actuators.fenced_values()
        self.actuators.set_like_others(
            {name: value for name, value in values.items() if present.get(name) != value}
        )
        if self.changes.must_undo:
            self.set_back()
        self.send(self.hello())

    def _settle(self, command_id: str, status: AckStatus, step: int, detail: str) -> None:
        """End a command that all ranks carry out together."""
        with self._inbox_lock:
            ack = self._inbox.settle(command_id, status, time.time_ns(), step, detail)
        self.send(ack)

    def _pause(self, cause: str) -> str:
        with self._inbox_lock:
            self.lease.begin(cause, time.monotonic())
        self.enter("paused")
        longest_s = self.lease.longest_s
        return f"for at most {longest_s:g} s" if math.isfinite(longest_s) else ""

    def _execute(self, command: Command) -> None:
        step = whole(self.step)
        if isinstance(command.do, Pause) and self.agreed_step is not None:
            step = whole(self.agreed_step())
        with self._inbox_lock:
            ack = self._inbox.begin(command.id, time.time_ns(), step)
        if ack is None:
            status: AckStatus = "applied"
            detail = ""
            try:
                detail = self._do(command) or ""
            except Exception as error:  # noqa: BLE001 - the user's functions run in here
                status, detail = "failed", error_line(error)
                _logger.warning("command %s failed: %s", command.id, detail)
            with self._inbox_lock:
                ack = self._inbox.settle(command.id, status, time.time_ns(), step, detail)
        self.send(ack)

    def _do(self, command: Command) -> str | None:
        """Carry out a command; return the detail for its ack, if any."""
        match command.do:
            case SetKnob(knob=name, value=value):
                self.actuators.set_knob(name, value)
                if command.cause == RECONCILE:
                    worker, now = self.identity.worker, self.actuators.values.get(name, value)
                    _logger.warning("%s: %s is restored to its desired value %r", worker, name, now)
                self.send(self.hello())
            case Checkpoint():
                with self.phase("checkpoint", _SAVE_S):
                    for save in self.actuators.checkpoint:
                        save()
            case Drain():
                self._leave()
            case Prepare():
                self.actuators.prepared = True
                self.send(self.hello())
            case Join():
                self.enter("joining")
            case Pause():
                return self._pause(command.cause)
            case Resume() if self.state == "paused":
                self.enter("training")
            case Cut(quorum_id=quorum_id):
                return self.actuators.cut(quorum_id)
            case Withdraw(number=number):
                self.changes.withdraw(number)
            case Dump():
                self.note("dump", self._evidence())
            case WriteLog(text=line):
                _logger.warning("%s: %s", self.identity.worker, line)
            case Survey() | Rehearse() as standby_task if not standby_task.ends_task:
                return self._run_standby_task(
                    self.actuators.standby_tasks[type(standby_task)], standby_task, command
                )
        return None

    def _run_standby_task(
        self, runner: StandbyTaskRunner, standby_task: StandbyTask, command: Command
    ) -> str:
        """Run a standby task until another command arrives."""
        left_s = (command.deadline_ns - time.time_ns()) / SECOND_NS

        def send_piece(points: int, of: int, piece: msgspec.Struct) -> None:
            details = {"command": command.id, "points": points, "of": of}
            self.note(standby_task.note, {**details, "piece": msgspec.json.encode(piece).decode()})

        return runner.run(
            standby_task,
            self.identity.worker,
            min(standby_task.seconds, left_s),
            send_piece,
            lambda: self._closed or not self._pending.empty(),
        )

    def _evidence(self) -> dict[str, Any]:
        """Return diagnostics of this process: what it waits for, and its stacks."""
        phase = self.phases.present()
        flight = ipc.Flight(text=flight_recorder(), collectives=collectives())
        return {
            **(phase.fields(time.monotonic_ns()) if phase else {}),
            **flight.fields(),
            "stacks": own_stacks(),
            "flight_recorder": flight.text,
        }

    def _leave(self) -> None:
        before = self.state
        self.enter("draining")
        try:
            for leave in self.actuators.drain:
                leave()
        except Exception:
            self.enter(before)
            raise
        self.going = False
        self.enter("left")

    def _progress(self, rows: list[tuple[int, dict[str, float]]]) -> ipc.Samples:
        return ipc.Samples(
            state=self.state,
            step=whole(self.step),
            progress_ns=max(self.samples.newest_ns, self._entered_ns),
            looked_ns=time.monotonic_ns(),
            phase=self.phases.present(),
            named=self.phases.named(),
            thread=self.thread,
            dropped=self.samples.dropped,
            rows=rows,
        )

    def _refusal(self, command: Command) -> str | None:
        if isinstance(command.do, Pause) and self.lease.is_over(command.cause):
            return "the pause was cancelled"
        if isinstance(command.do, FencedChange):
            return self._refusals.get(command.id)
        return self.actuators.refusal(command.do, self.state)


def error_line(error: BaseException) -> str:
    """Return an exception as one line for an ack."""
    return text(f"{type(error).__name__}: {text(error, MAX_TEXT)}", MAX_TEXT)
