"""A run's series at several spans a point, in none of which a spike of one sample is lost."""

import math

import numpy as np

from torchloom_core.plugin.arrays import Floats

SPANS_S = (1.0, 10.0, 60.0, 600.0)
"""What one point of a tier stands for."""

POINTS = 900
"""That a tier keeps: of the finest a quarter of an hour, of the coarsest six days."""


class _Tier:
    """The newest points of one span, the last of which is not over yet."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._points: Floats = np.full((POINTS, 4), math.nan)
        self._count = 0

    def add(self, t_s: float, low: float, middle: float, high: float) -> None:
        begin_s = math.floor(t_s / self.span_s) * self.span_s
        last = self._points[(self._count - 1) % POINTS]
        if self._count and begin_s <= last[0]:
            last[1:] = np.fmin(last[1], low), middle, np.fmax(last[3], high)
            return
        self._points[self._count % POINTS] = begin_s, low, middle, high
        self._count += 1

    def points(self) -> Floats:
        if self._count <= POINTS:
            return self._points[: self._count]
        return np.roll(self._points, -(self._count % POINTS), axis=0)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was forgotten yet."""
        return self._count <= POINTS


class Tiers:
    """One series; each tier has the least and the most of all that was told within a point."""

    def __init__(self) -> None:
        self._tiers = [_Tier(span_s) for span_s in SPANS_S]

    def add(self, t_s: float, low: float, middle: float, high: float) -> None:
        """Take what was told at ``t_s``, no earlier than what was told before."""
        for tier in self._tiers:
            tier.add(t_s, low, middle, high)

    def since(self, t_s: float) -> Floats:
        """Return the points that begin at ``t_s`` or later, of the finest tier that has them all.

        Returns
        -------
        array of float
            ``(points, 4)``: when a point begins, the least, the last middle and the most within it.
        """
        for tier in self._tiers:
            points = tier.points()
            if tier.is_whole or (len(points) and points[0, 0] <= t_s) or tier is self._tiers[-1]:
                return points[points[:, 0] >= t_s]
        raise AssertionError("there is a last tier")
