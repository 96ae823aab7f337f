"""The worker as its Weaver sees it: state, commands being obeyed, and what is reported.

The training thread comes in through :class:`~torchloom_threadlet.loom.Loom`, at step
boundaries; the link's thread through :meth:`Worker.deliver`, :meth:`Worker.report` and
:meth:`Worker.hello`.
"""

import logging
import os
import queue
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.messages import (
    AckStatus,
    Checkpoint,
    Command,
    Deed,
    Drain,
    Dump,
    Hello,
    Join,
    JoinFile,
    KnobValue,
    Note,
    Pause,
    Resume,
    SetKnob,
    WorkerState,
)
from torchloom_threadlet import frames
from torchloom_threadlet.actuators import Actuators
from torchloom_threadlet.identity import Identity
from torchloom_threadlet.inbox import Inbox
from torchloom_threadlet.link import Link
from torchloom_threadlet.samples import Samples, whole
from torchloom_threadlet.stacks import flight_recorder, own_stacks

_logger = logging.getLogger(__name__)


class Worker:
    """One life of one worker.

    Attributes
    ----------
    step : object
        The number of the last step, as the training loop gave it.
    going : bool
        False once the worker has been drained.
    attention : bool
        Whether the training thread must call :meth:`attend` at its next step boundary.
    """

    def __init__(
        self, identity: Identity, join: tuple[Path, JoinFile] | None, framework: str
    ) -> None:
        self.identity = identity
        self.state: WorkerState = "standby" if identity.standby and join else "joining"
        self.step: Any = -1
        self.going = True
        self.attention = True
        self.samples = Samples()
        self.actuators = Actuators(standby=identity.standby)
        self._run = join[1].run if join else ""
        self._framework = framework
        self._entered_ns = time.monotonic_ns()
        self._reported: tuple[WorkerState, int] | None = None
        self._todo: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._inbox = Inbox(identity.incarnation, self._refusal)
        self._inbox_lock = threading.Lock()
        self._link = Link(self, join[1], join[0]) if join else None

    @property
    def linked(self) -> bool:
        """Whether there is a Weaver to talk to."""
        return self._link is not None

    def start(self) -> None:
        """Start the link."""
        if self._link is not None:
            self._link.start()

    def part(self) -> None:
        """Say goodbye and stop the link; nothing is obeyed any more."""
        self._todo.put(None)
        self.send(frames.Goodbye())
        if self._link is not None:
            self._link.stop()

    def send(self, frame: msgspec.Struct) -> None:
        """Send a frame to the sidecar, if there is one to be had."""
        if self._link is not None:
            self._link.send(frame)

    def note(self, kind: str, fields: dict[str, KnobValue | None]) -> None:
        """Tell the Weaver that something happened."""
        self.send(
            Note(
                run=self._run,
                worker=self.identity.worker,
                incarnation=self.identity.incarnation,
                kind=kind,
                step=whole(self.step),
                fields=fields,
                ts_ns=time.time_ns(),
            )
        )

    # --- the link's thread ------------------------------------------------------------------

    def hello(self) -> Hello:
        """Return who this worker is and what it can do now."""
        return Hello(
            run=self._run,
            worker=self.identity.worker,
            incarnation=self.identity.incarnation,
            group=self.identity.group,
            rank=self.identity.rank,
            node=self.identity.node,
            rack=self.identity.rack,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=self.state,
            knobs=self.actuators.specs,
            values=self.actuators.values,
            actuators=self.actuators.names,
            framework=self._framework,
            ts_ns=time.time_ns(),
        )

    def report(self) -> frames.Samples | None:
        """Return progress and new samples, or None if nothing happened since the last report."""
        rows = self.samples.take(self._entered_ns)
        now = (self.state, self._entered_ns)
        if not rows and now == self._reported:
            return None
        self._reported = now
        return self._progress(rows)

    def deliver(self, command: Command) -> None:
        """Answer a command, and queue it for the training thread if it is to be done."""
        with self._inbox_lock:
            ack, do = self._inbox.receive(command, time.time_ns(), whole(self.step))
        self.send(ack)
        if not do:
            return
        if isinstance(command.do, Dump):
            self._obey(command)
        else:
            self._todo.put(command)
            self.attention = True

    # --- the training thread ----------------------------------------------------------------

    def enter(self, state: WorkerState) -> None:
        """Change the state, and report it at once."""
        self._entered_ns = time.monotonic_ns()
        self.state = state
        self.send(self._progress([]))

    def wait_to_join(self) -> None:
        """Stand by: obey commands in the calling thread until one says to join."""
        while self.state == "standby" and (command := self._todo.get()) is not None:
            self._obey(command)

    def attend(self) -> None:
        """Do what has been asked, at the step boundary this is called from."""
        # Cleared first: a command that comes in meanwhile sets it again and is not overlooked.
        self.attention = False
        if self.state == "joining":
            self.enter("training")
        while not self._todo.empty():
            if (command := self._todo.get()) is not None:
                self._obey(command)
        while self.state == "paused" and (command := self._todo.get()) is not None:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        step = whole(self.step)
        with self._inbox_lock:
            ack = self._inbox.begin(command.id, time.time_ns(), step)
        if ack is None:
            status: AckStatus = "applied"
            detail = ""
            try:
                self._do(command.do)
            except Exception as error:  # noqa: BLE001 - the user's functions run in here
                status, detail = "failed", says(error)
                _logger.warning("command %s failed: %s", command.id, detail)
            with self._inbox_lock:
                ack = self._inbox.settle(command.id, status, time.time_ns(), step, detail)
        self.send(ack)

    def _do(self, deed: Deed) -> None:
        match deed:
            case SetKnob(knob=name, value=value):
                self.actuators.set_knob(name, value)
                self.send(self.hello())
            case Checkpoint():
                for save in self.actuators.checkpoint:
                    save()
            case Drain():
                self._leave()
            case Join():
                self.enter("joining")
            case Pause():
                self.enter("paused")
            case Resume() if self.state == "paused":
                self.enter("training")
            case Dump():
                self.note("dump", {"stacks": own_stacks(), "flight_recorder": flight_recorder()})

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

    def _progress(self, rows: list[tuple[int, dict[str, float]]]) -> frames.Samples:
        return frames.Samples(
            state=self.state,
            step=whole(self.step),
            progress_ns=max(self.samples.newest_ns, self._entered_ns),
            dropped=self.samples.dropped,
            rows=rows,
        )

    def _refusal(self, deed: Deed) -> str | None:
        return self.actuators.refusal(deed, self.state)


def says(error: BaseException) -> str:
    """Return an exception as one line for an ack."""
    return f"{type(error).__name__}: {error}"[:2000]
