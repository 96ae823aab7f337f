"""What a worker reports to its Weaver: its state, its samples, what it waits for, and notes."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from torchloom_core.wire.messages import LOG, Note, WorkerState
from torchloom_core.wire.start_phases import START_PHASES
from torchloom_threadlet import ipc
from torchloom_threadlet.cleaning import field_name, fields, whole
from torchloom_threadlet.identity import Identity
from torchloom_threadlet.trainer.phases import Compilations, Phases
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer
from torchloom_threadlet.trainer.sidecar_link import SidecarLink
from torchloom_threadlet.trainer.start_marks import StartMarks

_logger = logging.getLogger(__name__)


class Reporter:
    """The reports of one incarnation of one worker.

    ``phases``: what the trainer waits for, where an adapter records it, and its named phase.
    ``starting``: the phases of its start, up to the first committed step.
    ``thread``: the training thread, as :func:`threading.get_ident` names it; 0 where there are
    several.
    """

    def __init__(self, identity: Identity, state: WorkerState) -> None:
        self.identity = identity
        self.state = state
        self.step: Any = -1
        self.samples = SampleBuffer()
        self.thread = 0
        self._link: SidecarLink | None = None
        self.starting = StartMarks(
            identity.incarnation * 1_000_000,
            lambda start: self.note(START_PHASES, start.fields()),
            is_standby=state == "standby",
        )
        self.phases = Phases(self.starting)
        self._is_lost = False
        self._entered_ns = time.monotonic_ns()
        self._compilations = Compilations(self.phases, lambda: self.send(self.progress()))
        self._reported: tuple[object, ...] | None = None

    @property
    def whole_step(self) -> int:
        """The number of the last step, -1 if it is not a possible one."""
        return whole(self.step)

    @property
    def run(self) -> str:
        """The worker's run, "" before its Weaver is known."""
        return self._link.run if self._link is not None else ""

    @property
    def linked(self) -> bool:
        """Whether there is a Weaver, or may be later."""
        return self._link is not None and not self._is_lost

    @property
    def unset(self) -> str:
        """What to set so that no other process gets this worker's name."""
        return self.identity.unset

    def start(self) -> None:
        """Start the link."""
        if self._link is not None:
            self._link.start()

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
            run=self.run,
            worker=self.identity.worker,
            incarnation=self.identity.incarnation,
            kind=field_name(kind),
            step=self.whole_step,
            fields=fields(details),
            ts_ns=time.time_ns(),
        )

    def report(self) -> ipc.Samples | None:
        """Return progress and new samples, or None if nothing changed since the last report."""
        self._compilations.look()
        rows = self.samples.take(self._entered_ns)
        phase = self.phases.present()
        progress_ns = self.samples.progress_ns
        now = (self.state, self._entered_ns, progress_ns, phase, self.phases.named())
        # A wait is reported again and again: without confirmation it counts as over.
        waits = phase is not None and phase.name != ipc.COMPUTE
        if not rows and not waits and now == self._reported:
            return None
        self._reported = now
        return self.progress(rows)

    def progress(self, rows: Sequence[tuple[int, dict[str, float]]] = ()) -> ipc.Samples:
        """Return the state and the last step, with these samples."""
        return ipc.Samples(
            state=self.state,
            step=self.whole_step,
            progress_ns=max(self.samples.progress_ns, self._entered_ns),
            looked_ns=time.monotonic_ns(),
            phase=self.phases.present(),
            named=self.phases.named(),
            thread=self.thread,
            gpu=self.samples.gpu or "",
            dropped=self.samples.dropped,
            rows=list(rows),
        )

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
