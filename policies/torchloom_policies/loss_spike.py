"""A metric's baseline, and a spike above it: its cost, and the steps proposed against it."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from torchloom_core.plugin import Action, ChangeKnobs, FleetView, Floats, KnobValue, unsaved_work_s

Step = Literal["skip", "clip", "rewind"]

REWINDS = "rewinds_total"
_PRIOR = 4.0
"""Weight of the options' shares, in attempts."""
_LEAST_NOISE = 1e-3
"""Minimum noise, as a share of the level."""
_GAPS = 3
"""A metric missing for this many times its longest gap is lost."""


class Reference(NamedTuple):
    """A baseline's level and noise, and by how much it fell in which time."""

    level: float
    noise: float
    fell: float
    in_s: float


class MetricBaseline:
    """The newest ``patience`` values of one metric, and the baseline before them.

    The baseline has a length of ``window_s``, and ``least`` values at least (3 or more). It is a
    spike if the newest values' median is above it by ``band`` times the noise. ``missing`` counts
    the calls without a value since the last one, except those without a step.
    """

    def __init__(self, window_s: float, band: float, patience: int, least: int = 30) -> None:
        self._window_s, self._band = window_s, band
        self._patience, self._least = patience, least
        self._values: deque[tuple[float, float]] = deque()
        self._newest: deque[tuple[float, float]] = deque(maxlen=patience)
        self._reference: Reference | None = None
        self._frozen = False
        self._waits = self._gap = self.missing = 0

    def take(self, now_s: float, value: float, moved: bool) -> None:
        """Take the newest value; NaN if there is none."""
        if not math.isfinite(value):
            self.missing += moved
            return
        self._gap, self.missing = max(self._gap, self.missing), 0
        self._waits = max(0, self._waits - 1)
        if len(self._newest) == self._patience and not self._frozen:
            self._values.append(self._newest[0])
            while len(self._values) > self._least and self._values[0][0] <= now_s - self._window_s:
                self._values.popleft()
        self._newest.append((now_s, value))
        if not self._frozen:
            self._reference = self._measured(now_s) if self.is_ready else None

    def freeze(self) -> None:
        """Add no values to the baseline until :meth:`resume`."""
        self._frozen = True

    def wait(self, values: int) -> None:
        """Allow this many more values before the metric counts as raised again."""
        self._waits = values

    def resume(self, *, reset: bool) -> None:
        """Add values to the baseline again, after dropping it if ``reset``."""
        self._frozen, self._waits = False, 0
        if reset:
            self._values.clear()
            self._newest.clear()
            self._reference = None

    @property
    def is_ready(self) -> bool:
        """Whether the baseline has enough values."""
        return len(self._values) >= self._least

    @property
    def values(self) -> Floats:
        """The values of the baseline, oldest first."""
        return np.asarray([value for _, value in self._values])

    @property
    def since_s(self) -> float:
        """When the newest values rose above the band, seconds."""
        limit = self._band * self._noise
        return min(at_s for at_s, value in self._newest if value - self._level > limit)

    @property
    def lost(self) -> bool:
        """Whether it is missing for much longer than ever before."""
        return self.missing > max(self._patience, _GAPS * self._gap)

    @property
    def waits(self) -> bool:
        """Whether it still has time to recover, see :meth:`wait`."""
        return self._waits > 0 and not self.lost

    @property
    def is_up(self) -> bool:
        """Whether its newest values lie above the band, and the wait is over."""
        return not (self._waits or self.lost) and self._rise > self._band * self._noise

    @property
    def undone_s(self) -> float:
        """How long it took to fall by as much as it rose, seconds; inf if it did not fall."""
        reference = self._reference
        if reference is None or reference.fell <= reference.noise:
            return math.inf
        return reference.in_s * self._rise / reference.fell

    def __str__(self) -> str:
        if self._reference is None:
            return "unknown"
        level, noise, *_ = self._reference
        times = self._rise / noise if noise else math.inf
        return f"{level + self._rise:.4g}, {times:.1f} times its noise above {level:.4g}"

    @property
    def _level(self) -> float:
        return self._reference.level if self._reference else math.inf

    @property
    def _noise(self) -> float:
        return self._reference.noise if self._reference else math.inf

    @property
    def _rise(self) -> float:
        """How far the median of the newest values lies above the level."""
        if self._reference is None or len(self._newest) < self._patience:
            return 0.0
        newest = sorted(value for _, value in self._newest)
        return newest[self._patience // 2] - self._level

    def _measured(self, now_s: float) -> Reference:
        """Fit Tukey's resistant line: through the medians of the outer thirds.

        The level is at least the median of the last third: the end of a fall is not a rise.
        """
        at_s, values = np.asarray(self._values).T
        third = len(values) // 3
        first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
        first_s, last_s = float(np.median(at_s[:third])), float(np.median(at_s[-third:]))
        slope = (last - first) / (last_s - first_s)
        left = values - slope * (at_s - now_s)
        line = float(np.median(left))
        level = max(line, last)
        noise = 1.4826 * float(np.median(np.abs(left - line)))
        return Reference(
            level, max(noise, _LEAST_NOISE * abs(level)), first - last, last_s - first_s
        )


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
