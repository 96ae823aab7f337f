"""How long a step may take, learned from the longest steps of the run."""

import numpy as np

from torchloom_core.plugin import FleetView, Floats, grow

STEP_TIME, FAILED_STEPS = "step_time_s", "failed_steps_total"


class Patience:
    """Each worker's longest step, which decays with the half-life ``memory_s``.

    The usual longest step is the median over the workers that train: they wait for each other, so
    a slow step of one is slow for all, and a single wrong report has no effect. Failed steps are
    ignored: an eviction may have ended them.

    Parameters
    ----------
    ratio : float
        Limit of a step, in multiples of the usual longest step.
    most_s : float
        Upper bound on the learned limit, seconds.
    memory_s : float
        Half-life of a longest step's weight, seconds.

    Attributes
    ----------
    longest_s : float
        The usual longest step, seconds; 0 before the first.
    """

    def __init__(self, ratio: float, most_s: float, memory_s: float) -> None:
        self._ratio = ratio
        self._most_s = most_s
        self._memory_s = memory_s
        self.longest_s = 0.0
        self.has_begun = np.zeros(0, dtype=np.bool_)
        self._own_s: Floats = np.zeros(0)
        self._step: Floats = np.zeros(0)
        self._age_s: Floats = np.zeros(0)
        self._failed: Floats = np.zeros(0)
        self._now_s = 0.0

    def look(self, view: FleetView) -> None:
        """Learn from the steps that were finished since the last tick.

        Sets ``has_begun`` for training workers that finished two steps in this incarnation:
        before that a worker loads and compiles.
        """
        workers, trains = len(view), view.is_in("training")
        step_s, failed = view.latest(STEP_TIME), view.latest(FAILED_STEPS)
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
            self.longest_s = float(np.median(self._own_s[self._own_s > 0]))

    def limit_s(self, least_s: float) -> float:
        """Return how long a step may take, seconds, ``least_s`` at least."""
        return max(least_s, min(self._ratio * self.longest_s, self._most_s))

    def in_words(self, least_s: float, checkpoint_s: float) -> str:
        """Return the limit with a checkpoint, and how it was derived."""
        limit_s = self.limit_s(least_s)
        learned = limit_s > least_s
        of = f"{self._ratio:g} x longest step" if learned else "least_s; longest step"
        saving = f", and {checkpoint_s:g} s for a checkpoint" if checkpoint_s else ""
        return f"time limit {limit_s + checkpoint_s:.0f} s ({of} {self.longest_s:.3g} s{saving})"
