"""A loss spike as ``loss_guard`` follows it: its cost, and the steps proposed against it."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from torchloom_core.plugin import Action, ChangeKnobs, FleetView, KnobValue, unsaved_work_s
from torchloom_policies.metric_baseline import MetricBaseline

Step = Literal["skip", "clip", "rewind"]

REWINDS = "rewinds_total"
_PRIOR = 4.0
"""Weight of the options' shares, in attempts."""


class Spike:
    """A rise of a metric, or the absence of all, and the step proposed against it."""

    def __init__(self, since_s: float, at: int) -> None:
        self.since_s = self.seen_s = since_s
        self.at = at
        self.proposed: Step | None = None
        self.done = self.alerted = False
        self._values: Mapping[str, KnobValue] = {}
        self._step = 0
        self._rewinds = 0.0

    def propose(
        self, at: int, step: Step, action: Action, view: FleetView, rows: Sequence[int]
    ) -> None:
        """Remember the proposed step, and how far the training was."""
        self.at, self.proposed, self.done = at, step, False
        self._step, self._rewinds = step_of(view, rows), _rewinds_of(view, rows)
        self._values = action.values if isinstance(action, ChangeKnobs) else {}

    def look(self, view: FleetView, rows: Sequence[int]) -> None:
        """Check whether the proposed step was applied."""
        self.seen_s = view.now_s
        if self.proposed == "rewind":
            # torchft's step never decreases; a script's own may.
            self.done |= step_of(view, rows) < self._step
            self.done |= _rewinds_of(view, rows) > self._rewinds
        for knob, value in self._values.items():
            present = view.knob(knob)
            self.done |= all(present[row] == value for row in rows)


class Case:
    """A spike that lasts, and its state in the view; ``up`` holds the metrics still raised."""

    def __init__(
        self, spike: Spike, up: Mapping[str, MetricBaseline], view: FleetView, rows: Sequence[int]
    ) -> None:
        self.spike, self.up, self.view, self.rows = spike, up, view, rows
        self.lasts_s = view.now_s - spike.since_s
        unsaved_s, usual_s = unsaved_work_s(view), view.costs.unsaved_s
        self.saved_since = unsaved_s is not None and unsaved_s < self.lasts_s
        self.good_s = usual_s if unsaved_s is None else max(0.0, unsaved_s - self.lasts_s)
        # The usual unsaved work is half of a checkpoint interval.
        self.unsaved_at_most_s = 2.0 * usual_s + self.lasts_s if unsaved_s is None else unsaved_s

    def setback_s(self, most: float) -> float:
        """Return how much training it has undone, seconds; ``most`` if unknown."""
        return min((past.undone_s for past in self.up.values()), default=most)

    @property
    def what(self) -> str:
        """The spike in words, for the reason."""
        if not self.up:
            return f"no finite loss or norm for {self.lasts_s:.0f} s, while steps continue"
        rises = ", ".join(f"{metric} is {past}" for metric, past in self.up.items())
        return f"for {self.lasts_s:.0f} s {rises}"


class SuccessRate:
    """A success rate: a beta distribution with the prior ``mean``."""

    def __init__(self, mean: float) -> None:
        self._successes, self._tries = mean * _PRIOR, _PRIOR

    @property
    def mean(self) -> float:
        """The estimated rate, 0 to 1."""
        return self._successes / self._tries

    def count(self, success: bool) -> None:
        """Count one more attempt."""
        self._successes += success
        self._tries += 1


class Pace:
    """Steps per second of the run, recomputed steps included."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()
        self._step = -1

    @property
    def steps_per_s(self) -> float:
        """Over the last window, 0 if unknown."""
        if len(self._seen) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s)

    def look(self, now_s: float, step: int) -> bool:
        """Take the run's step; return whether it has increased since the last call."""
        made = max(0, step - self._step) if self._step >= 0 else 0
        self._step = step
        done = self._seen[-1][1] if self._seen else 0
        self._seen.append((now_s, done + made))
        while self._seen[0][0] < now_s - self._window_s:
            self._seen.popleft()
        return made > 0


def step_of(view: FleetView, rows: Sequence[int]) -> int:
    """Return the highest step of these rows."""
    return int(view.step[rows].max())


def _rewinds_of(view: FleetView, rows: Sequence[int]) -> float:
    """Return the number of rewinds, 0 if not reported."""
    rewinds = view.latest(REWINDS)[rows]
    return float(np.nanmax(rewinds)) if np.isfinite(rewinds).any() else 0.0
