"""A spike of the loss as the policy ``loss_guard`` follows it: what it has cost, what was tried."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from torchloom_core.plugin import Action, ChangeKnobs, FleetView, KnobValue, unsaved_work_s
from torchloom_policies.metric_baseline import MetricBaseline

Step = Literal["skip", "clip", "rewind"]

REWINDS = "rewinds_total"
_PRIOR = 4.0
"""How many tries the shares in the options stand for."""


class Spike:
    """A rise of some metric, or the loss of all, and what was asked for because of it."""

    def __init__(self, since_s: float, at: int) -> None:
        self.since_s = self.seen_s = since_s
        self.at = at
        self.asked: Step | None = None
        self.done = self.told = False
        self._values: Mapping[str, KnobValue] = {}
        self._step = 0
        self._rewinds = 0.0

    def ask(
        self, at: int, asked: Step, action: Action, view: FleetView, rows: Sequence[int]
    ) -> None:
        """Remember what is proposed, and how far the training was."""
        self.at, self.asked, self.done = at, asked, False
        self._step, self._rewinds = step_of(view, rows), _rewinds_of(view, rows)
        self._values = action.values if isinstance(action, ChangeKnobs) else {}

    def look(self, view: FleetView, rows: Sequence[int]) -> None:
        """See whether what was asked for has been done."""
        self.seen_s = view.now_s
        if self.asked == "rewind":
            # torchft's step only goes on, a script's own may go back.
            self.done |= step_of(view, rows) < self._step
            self.done |= _rewinds_of(view, rows) > self._rewinds
        for knob, value in self._values.items():
            present = view.knob(knob)
            self.done |= all(present[row] == value for row in rows)


class Case:
    """A spike that lasts, and what the view tells of it; ``up`` is what has stayed up."""

    def __init__(
        self, spike: Spike, up: Mapping[str, MetricBaseline], view: FleetView, rows: Sequence[int]
    ) -> None:
        self.spike, self.up, self.view, self.rows = spike, up, view, rows
        self.lasts_s = view.now_s - spike.since_s
        unsaved_s, usual_s = unsaved_work_s(view), view.costs.unsaved_s
        self.saved_since = unsaved_s is not None and unsaved_s < self.lasts_s
        self.good_s = usual_s if unsaved_s is None else max(0.0, unsaved_s - self.lasts_s)
        # What is usual is half of the work between two checkpoints.
        self.unsaved_at_most_s = 2.0 * usual_s + self.lasts_s if unsaved_s is None else unsaved_s

    def setback_s(self, most: float) -> float:
        """Return how much training it has undone, ``most`` where nobody can say."""
        return min((past.undone_s for past in self.up.values()), default=most)

    @property
    def what(self) -> str:
        """What has happened, for people."""
        if not self.up:
            return f"steps go on, and for {self.lasts_s:.0f} s neither loss nor norm is a number"
        rises = ", ".join(f"{metric} is {past}" for metric, past in self.up.items())
        return f"for {self.lasts_s:.0f} s {rises}"


class SuccessRate:
    """How often something was so, a beta distribution that begins at ``mean``."""

    def __init__(self, mean: float) -> None:
        self._so, self._tries = mean * _PRIOR, _PRIOR

    @property
    def mean(self) -> float:
        """How often it is so, 0 to 1."""
        return self._so / self._tries

    def count(self, so: bool) -> None:
        """Take note of one more try."""
        self._so += so
        self._tries += 1


class Pace:
    """How many steps the run makes a second, those that it makes again counted, too."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()
        self._step = -1

    @property
    def steps_per_s(self) -> float:
        """Over the last window, 0 where nothing is known."""
        if len(self._seen) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s)

    def look(self, now_s: float, step: int) -> bool:
        """Take how far the run is; return whether it has made a step since the last look."""
        made = max(0, step - self._step) if self._step >= 0 else 0
        self._step = step
        done = self._seen[-1][1] if self._seen else 0
        self._seen.append((now_s, done + made))
        while self._seen[0][0] < now_s - self._window_s:
            self._seen.popleft()
        return made > 0


def step_of(view: FleetView, rows: Sequence[int]) -> int:
    """Return how far the workers of these rows are."""
    return int(view.step[rows].max())


def _rewinds_of(view: FleetView, rows: Sequence[int]) -> float:
    """Return how often a rank has gone back, 0 where nobody says."""
    told = view.latest(REWINDS)[rows]
    return float(np.nanmax(told)) if np.isfinite(told).any() else 0.0
