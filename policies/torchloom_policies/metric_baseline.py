"""A metric's calm past, and whether it has risen out of it; ``loss_guard`` keeps some."""

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from torchloom_core.plugin import Floats

_LEAST_NOISE = 1e-3
"""Of the level: a rise is held against no less, however quiet the run is."""
_GAPS = 3
"""Missing for so many times the longest gap of its past, a metric is lost."""


class Reference(NamedTuple):
    """Where a calm metric is, by how much it scatters, and how far it fell in which time."""

    level: float
    noise: float
    fell: float
    in_s: float


class MetricBaseline:
    """The newest ``patience`` values of one metric, and those before them that were calm.

    Parameters
    ----------
    window_s : float
        How much of the past counts, seconds; more where that has fewer than ``least`` values.
    band : float
        How many times its noise the median of the newest values has to lie above it.
    patience : int
        How many values are the newest.
    least : int
        Calm values below which nothing is known, at least 3.

    Attributes
    ----------
    missing : int
        Looks without a value since the last, those not counted in which no step was made.
    """

    def __init__(self, window_s: float, band: float, patience: int, least: int = 30) -> None:
        self._window_s, self._band = window_s, band
        self._patience, self._least = patience, least
        self._calm: deque[tuple[float, float]] = deque()
        self._newest: deque[tuple[float, float]] = deque(maxlen=patience)
        self._reference: Reference | None = None
        self._held = False
        self._waits = self._gap = self.missing = 0

    def take(self, now_s: float, value: float, moved: bool) -> None:
        """Take the newest value, no finite number where there is none."""
        if not math.isfinite(value):
            self.missing += moved
            return
        self._gap, self.missing = max(self._gap, self.missing), 0
        self._waits = max(0, self._waits - 1)
        if len(self._newest) == self._patience and not self._held:
            self._calm.append(self._newest[0])
            while len(self._calm) > self._least and self._calm[0][0] <= now_s - self._window_s:
                self._calm.popleft()
        self._newest.append((now_s, value))
        if not self._held:
            self._reference = self._measured(now_s) if self.known else None

    def hold(self) -> None:
        """Let nothing into the past until :meth:`go_on`, and hold what comes against it."""
        self._held = True

    def wait(self, values: int) -> None:
        """Give it so many more values to come back."""
        self._waits = values

    def go_on(self, *, anew: bool) -> None:
        """Go on with the past, or begin it ``anew``."""
        self._held, self._waits = False, 0
        if anew:
            self.forget()

    def forget(self) -> None:
        """Drop all values."""
        self._calm.clear()
        self._newest.clear()
        self._reference = None

    @property
    def known(self) -> bool:
        """Whether there is enough of a past."""
        return len(self._calm) >= self._least

    @property
    def values(self) -> Floats:
        """The calm values, oldest first."""
        return np.asarray([value for _, value in self._calm])

    @property
    def since_s(self) -> float:
        """When the newest values rose."""
        limit = self._band * self._noise
        return min(at_s for at_s, value in self._newest if value - self._level > limit)

    @property
    def lost(self) -> bool:
        """Whether it stays away for longer than it ever did."""
        return self.missing > max(self._patience, _GAPS * self._gap)

    @property
    def waits(self) -> bool:
        """Whether it is given more time to come back."""
        return self._waits > 0 and not self.lost

    @property
    def is_up(self) -> bool:
        """Whether its newest values lie beyond the band, and it has no more time."""
        return not (self._waits or self.lost) and self._rise > self._band * self._noise

    @property
    def undone_s(self) -> float:
        """How long it took to fall by what it has risen, seconds; inf if it did not fall."""
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

        Below the median of its last third it is not followed: a fall that ends is no rise.
        """
        at_s, values = np.asarray(self._calm).T
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
