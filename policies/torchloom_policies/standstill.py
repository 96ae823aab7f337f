"""Evidence on workers that finish no step, and how long a step may take; for ``hang``."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import FleetView, Floats, Need, NeedNotes, grow

Rows = NDArray[np.bool_]

_STEP_TIME, _FAILED_STEPS = "step_time_s", "failed_steps_total"
_STOPPED, _CPU_STILL, _STACK_STILL, _PHASE_LEFT = (
    "trainer_stopped",
    "trainer_cpu_still_s",
    "trainer_stack_still_s",
    "trainer_phase_left_s",
)
_STILL, _OVERRUN, DUMP = "still", "phase_overrun", "dump"

NEEDS = (
    Need(_STEP_TIME),
    Need(_FAILED_STEPS, optional=True),
    Need(_STOPPED),
    Need(_CPU_STILL, optional=True),
    Need(_STACK_STILL, optional=True),
    Need(_PHASE_LEFT, optional=True),
    NeedNotes((_STILL, _OVERRUN, DUMP)),
)


class Standstill:
    """The evidence at one tick, arrays of shape ``(workers,)``.

    A process is ``stopped`` by SIGSTOP or a debugger, ``in_phase`` within the bound of a named
    phase, or ``unseen`` if its CPU time or stack is unknown, as with an older Threadlet. ``idle_s``
    is the time without CPU use and with an unchanged stack; 0 if it works or is unseen.
    """

    def __init__(self, view: FleetView) -> None:
        self._view = view
        self._cpu_still_s = view.latest(_CPU_STILL)
        self._stack_still_s = view.latest(_STACK_STILL)
        self.stopped: Rows = view.latest(_STOPPED) >= 1
        self.in_phase: Rows = view.latest(_PHASE_LEFT) > 0
        self.unseen: Rows = np.isnan(self._cpu_still_s) | np.isnan(self._stack_still_s)
        idle_s = np.where(self._stack_still_s > 0, self._cpu_still_s, 0.0)
        self.idle_s: Floats = np.where(self.unseen, 0.0, np.minimum(idle_s, view.progress_age_s))

    def in_words(self, row: int) -> str:
        """Return the evidence on the worker in ``row``."""
        if self.stopped[row]:
            return "its process is stopped"
        if self.unseen[row]:
            text = "its CPU time and stack are unknown"
        elif self.idle_s[row] > 0:
            at = self._field(_STILL, row, "at")
            text = (
                f"no CPU time for {self._cpu_still_s[row]:.0f} s, stack unchanged for "
                f"{self._stack_still_s[row]:.0f} s{f' in {at}' if at else ''}"
            )
        else:
            text = "it is working, but exceeds the time limit of a step"
        phase = self._field(_OVERRUN, row, "phase")
        if phase and self._view.latest(_PHASE_LEFT)[row] <= 0:
            bound_s = self._field(_OVERRUN, row, "at_most_s")
            text += f", its phase {phase} exceeds its bound of {bound_s} s"
        return text

    def _field(self, kind: str, row: int, name: str) -> str:
        note = self._view.note(kind, row)
        value = note.fields.get(name, "") if note is not None else ""
        return f"{value:g}" if isinstance(value, int | float) else str(value)


class Patience:
    """Each worker's longest step, which decays with the half-life ``memory_s``.

    The usual longest step is the median over the workers that train: they wait for each other, so
    a slow step of one is slow for all, and a single wrong report has no effect. Failed steps are
    ignored: an eviction may have ended them.
    A step may take ``ratio`` times that, but the learned limit is at most ``most_s``.
    ``has_begun`` are the training workers that finished two steps in this incarnation: before that
    a worker loads and compiles.
    """

    def __init__(self, ratio: float, most_s: float, memory_s: float) -> None:
        self._ratio = ratio
        self._most_s = most_s
        self._memory_s = memory_s
        self._longest_s = 0.0
        self.has_begun = np.zeros(0, dtype=np.bool_)
        self._own_s: Floats = np.zeros(0)
        self._step: Floats = np.zeros(0)
        self._age_s: Floats = np.zeros(0)
        self._failed: Floats = np.zeros(0)
        self._now_s = 0.0

    def look(self, view: FleetView) -> None:
        """Learn from the steps that were finished since the last tick."""
        workers, trains = len(view), view.is_in("training")
        step_s, failed = view.latest(_STEP_TIME), view.latest(_FAILED_STEPS)
        trained = grow(self.has_begun, workers) & trains
        age_s = grow(self._age_s, workers)
        finished = (view.step != grow(self._step, workers)) | (view.progress_age_s < age_s)
        failed_before = grow(self._failed, workers)
        learns = trained & finished & ~(failed > failed_before)
        lasted_s = np.where(learns, np.fmax(step_s, age_s), 0.0)
        lasted_s = np.where(np.isfinite(lasted_s), lasted_s, 0.0)
        decay = 0.5 ** (max(0.0, view.now_s - self._now_s) / self._memory_s) if self._now_s else 1.0
        self._own_s = np.maximum(grow(self._own_s, workers) * decay, lasted_s) * trains
        self.has_begun = trained | (trains & (step_s > 0))
        self._step, self._age_s = view.step.astype(float), view.progress_age_s.copy()
        self._failed = np.where(np.isnan(failed), failed_before, failed)
        self._now_s = view.now_s
        if (self._own_s > 0).any():
            self._longest_s = float(np.median(self._own_s[self._own_s > 0]))

    def limit_s(self, least_s: float) -> float:
        """Return how long a step may take, seconds, ``least_s`` at least."""
        return max(least_s, min(self._ratio * self._longest_s, self._most_s))

    def in_words(self, least_s: float, checkpoint_s: float) -> str:
        """Return the limit with a checkpoint, and how it was derived."""
        limit_s = self.limit_s(least_s)
        learned = limit_s > least_s
        of = f"{self._ratio:g} x longest step" if learned else "least_s; longest step"
        saving = f", and {checkpoint_s:g} s for a checkpoint" if checkpoint_s else ""
        return f"time limit {limit_s + checkpoint_s:.0f} s ({of} {self._longest_s:.3g} s{saving})"
