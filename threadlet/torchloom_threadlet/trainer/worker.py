"""The worker as its Weaver sees it: its state, its commands and its reports.

The training thread enters through :class:`~torchloom_threadlet.loom.Loom`, at step boundaries; the
link's thread through the methods of :class:`~torchloom_threadlet.trainer.linked_trainer.Trainer`.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from torchloom_core.wire.commands import AckStatus, Command
from torchloom_core.wire.limits import MAX_SHORT_TEXT, KnobValue
from torchloom_core.wire.messages import Hello, PauseState
from torchloom_core.wire.operations import SAVES_TOGETHER, SUSPENDED, FencedChange, done_by
from torchloom_threadlet import ipc
from torchloom_threadlet.cleaning import error_line, text, whole
from torchloom_threadlet.identity import Identity
from torchloom_threadlet.identity import Join as JoinPlace
from torchloom_threadlet.launch import launch_of
from torchloom_threadlet.trainer.actuators import Actuators
from torchloom_threadlet.trainer.changes import Changes, Unchanged
from torchloom_threadlet.trainer.command_inbox import CommandInbox
from torchloom_threadlet.trainer.operations import Operations
from torchloom_threadlet.trainer.pausing import Pausing
from torchloom_threadlet.trainer.sidecar_link import SidecarLink
from torchloom_threadlet.trainer.sidecar_start import find_interpreter
from torchloom_threadlet.trainer.standby_tasks import StandbyTasks

_logger = logging.getLogger(__name__)

_FIRST_STEP = 1
"""The largest number of a first step that needs no checkpoint."""


class Worker(Pausing):
    """One incarnation of one worker.

    ``has_pending``: whether the training thread has to call :meth:`execute_pending` at its next
    step boundary.
    ``replica_id``: the lighthouse's name for this incarnation of the group, where an adapter knows
    it.
    ``framework``: its name, for display.
    ``saves_together``, ``leaves_together``: whether all ranks save, and leave, at one step or none.
    ``agreed_step``: returns the step number that all groups agree on, where ``step`` may differ.
    ``is_called``: returns whether the adapter needs the training thread, even in a pause.
    ``cannot_freeze``: why this process must not be stopped in a suspension; "" if it may be.
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
        interpreter = find_interpreter() if join else ""
        super().__init__(identity, "standby" if identity.standby and interpreter else "joining")
        self.going = self.has_pending = True
        self.rewinds = 0
        self.changes = Changes(self._settle)
        self.actuators = Actuators()
        self.operations = Operations(self)
        self.is_held = identity.standby and held
        self.prepared = False
        self.replica_id = ""
        self.agreed_step: Callable[[], object] | None = None
        self._launch, self._resumes = launch_of()
        self.framework, self.saves_together, self.leaves_together = framework, False, False
        self.meet: Callable[[str], object] = lambda name: None
        self.is_called: Callable[[], bool] = lambda: False
        self.cannot_freeze = ""
        self._pending: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._inbox = CommandInbox(identity.incarnation)
        self._standby_tasks = standby_tasks or {}
        for verb, runner in self._standby_tasks.items():
            self.actuators.add_function(verb, runner)
        self._closed = False
        self._unwanted = ""
        self._awaits_decision = False
        self._admission = threading.Event()
        self._link = SidecarLink(self, join, interpreter) if join and interpreter else None

    def close(self) -> None:
        """Say goodbye and stop the link; no command is carried out afterwards."""
        self._closed = True
        self._pending.put(None)
        self.send(ipc.Goodbye())
        if self._link is not None:
            self._link.stop()

    def announce(self) -> None:
        """Report what the worker can do now."""
        if self.linked:
            self.send(self.hello())

    # --- the link's thread ------------------------------------------------------------------

    def hello(self) -> Hello:
        """Return the worker's identity and what it can do now."""
        placement = msgspec.structs.asdict(self.identity.placement) | {"run": self.run}
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
            actuators=self.operations.offered()
            + ("prepared",) * self.prepared
            + (SAVES_TOGETHER,) * self.saves_together
            + (SUSPENDED,) * self.lease.is_held,
            tries=tuple(name for runner in self._standby_tasks.values() for name in runner.tries),
            launch=self._launch,
            resumes=self._resumes,
            framework=text(self.framework, MAX_SHORT_TEXT),
            replica_id=text(self.replica_id, MAX_SHORT_TEXT),
            quorum_id=self.phases.quorum_id,
            epoch=self._inbox.highest_epoch,
            ts_ns=time.time_ns(),
        )

    def deliver(self, command: Command) -> None:
        """Acknowledge a command, and queue it for the training thread if it is to be done."""
        refusal = self.operations.refusal(command)
        with self._inbox_lock:
            ack, do = self._inbox.receive(command, time.time_ns(), self.whole_step, refusal)
        self.send(ack)
        if not do:
            return
        if isinstance(command.do, FencedChange):
            self.changes.offer(command, command.do)
        elif self.operations.is_at_once(command):
            self._execute_at_once(command)
        else:
            self._pending.put(command)
            self.has_pending = True

    def _execute_at_once(self, command: Command) -> None:
        """Carry out a command here, or beside: this thread also sends heartbeats."""
        if self.operations.may_block(command):
            beside = threading.Thread(target=self._execute, args=(command,), daemon=True)
            with contextlib.suppress(RuntimeError):  # a limit of the system's
                return beside.start()
        return self._execute(command)

    def update_pause(self, state: PauseState) -> None:
        """Extend or end a pause, as the Weaver reports."""
        with self._inbox_lock:
            if state.run != self.run or not self._inbox.accepts(state.epoch):
                return
            if state.role not in ("", self.identity.placement.role):
                return
            self.lease.update(state, time.monotonic())
        if state.over:
            self.changes.cancel(state.over)
        if self.state == "paused":
            self.wake()

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
        self.wake()

    def wake(self) -> None:
        """Have a training thread that waits for a command look again."""
        self._pending.put(None)

    # --- the training thread ----------------------------------------------------------------

    def wait_until_admitted(self, timeout_s: float) -> str:
        """Wait for the Weaver's decision; return why this worker is not admitted, or ""."""
        self._awaits_decision = True
        self._admission.wait(timeout_s)
        self._awaits_decision = False
        return self._unwanted

    def wait_to_join(self) -> None:
        """Carry out commands in the calling thread until a standby joins or leaves.

        Returns on the first ``prepare`` as well: the standby has to make its Manager then.
        """
        prepared = self.prepared
        while self.state == "standby" and self.prepared == prepared and not self._closed:
            if (command := self._pending.get()) is not None:
                self._execute(command)

    def execute_pending(self) -> None:
        """Carry out pending commands at this step boundary."""
        # Cleared first: a command that arrives meanwhile sets it again.
        self.has_pending = False
        self.starting.stepped()
        if self.state == "joining":
            self.enter("training")
        if self._resumes is None:
            self._resumes = self.whole_step > _FIRST_STEP
            self.announce()
        self.make_due()
        while not self._pending.empty():
            if (command := self._pending.get()) is not None:
                self._execute(command)
        while self.state == "paused" and not self._closed and not self.is_called():
            self._wait_in_pause()

    def _wait_in_pause(self) -> None:
        """Wait for a command or for the pause's end, and act on it."""
        left_s, why = self.left_of_pause()
        if left_s > 0:
            try:
                command = self._pending.get(timeout=min(left_s, self.next_look_s()))
            except queue.Empty:
                if self.is_parked and self.parking.is_replaced():
                    self.leave()
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
        rolls_back = loses_state = False
        step = whole(self.agreed_step() if self.agreed_step is not None else self.step)
        before: Mapping[str, KnobValue] = {}
        detail = "agreed; nothing to do in this group"
        try:
            if operation is not None:
                part = self.operations.part(operation)
                rolls_back, loses_state = part.rolls_back, part.loses_state
                if knobs_only and not rolls_back:
                    return
                detail, before = self.operations.make(operation, change.cause)
        except Exception as error:  # noqa: BLE001 - the user's functions run in here
            self.changes.failed(change, step, error_line(error), rolls_back=rolls_back)
            _logger.warning("change %d failed: %s", change.number, error_line(error))
            if loses_state and not isinstance(error, Unchanged):
                self.changes.lose_state()
        else:
            self.changes.made(change, before, step, detail)
        if rolls_back:
            self.announce()

    def set_back(self) -> None:
        """Roll back a change that some rank failed to make, before the ranks reduce anything.

        Raises SystemExit if that fails, too: this rank would differ from the others.
        """
        values = self.changes.before
        self.actuators.set_back(values)
        self.changes.undone()
        worker = self.identity.worker
        _logger.warning("%s: rolled back to %s: the change failed on a rank", worker, values)
        self.announce()

    def take_over(self, standing: str) -> None:
        """Take over a peer's knobs with its state, before the state is loaded.

        Raises SystemExit if that fails: this rank would differ from the others.
        """
        values, present = self.changes.inherit(standing), self.actuators.fenced_values()
        self.actuators.set_like_others(
            {name: value for name, value in values.items() if present.get(name) != value}
        )
        if self.changes.must_undo:
            self.set_back()
        self.announce()

    def _settle(self, command: str, status: AckStatus, step: int, detail: str, before: Any) -> None:
        """End a command that all ranks carry out together."""
        with self._inbox_lock:
            ack = self._inbox.settle(command, status, time.time_ns(), step, detail, before=before)
        self.send(ack)

    def leave(self) -> None:
        """Leave after this step, as if drained: the script's loop ends."""
        self.enter("draining")
        for leave in self.actuators.functions("drain"):
            try:
                leave()
            except Exception as error:  # noqa: BLE001 - the user's function
                _logger.warning("on_drain: %s", error_line(error))
        self.going = False
        self.enter("left")

    def has_waiting_command(self) -> bool:
        """Return whether a command waits for the training thread, or the loom is closed."""
        return self._closed or not self._pending.empty()

    def _execute(self, command: Command) -> None:
        step, refusal = self.whole_step, self.operations.refusal(command)
        if self.agreed_step is not None and self.operations.can_be_fenced(command):
            step = whole(self.agreed_step())
        with self._inbox_lock:
            ack = self._inbox.begin(command.id, time.time_ns(), step, refusal)
        if ack is None:
            status: AckStatus = "applied"
            detail = ""
            try:
                detail = self.operations.do(command)
            except Exception as error:  # noqa: BLE001 - the user's functions run in here
                status, detail = "failed", error_line(error)
                _logger.warning("command %s failed: %s", command.id, detail)
            with self._inbox_lock:
                ack = self._inbox.settle(command.id, status, time.time_ns(), step, detail)
        self.send(ack)
