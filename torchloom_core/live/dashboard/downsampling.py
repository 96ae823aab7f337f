"""Series at several resolutions; a spike of one sample is visible in each of them."""

import math

import numpy as np

from torchloom_core.interface.arrays import Floats

SPANS_S = (1.0, 10.0, 60.0, 600.0)
"""The span of one point, seconds, of each resolution."""

POINTS = 900
"""Stored at each resolution: a quarter of an hour of the finest, six days of the coarsest."""


class _Resolution:
    """The newest points of one resolution; the last one is still growing."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._points: Floats = np.full((POINTS, 4), math.nan)
        self.count = 0

    def add(self, t_s: float, low: float, middle: float, high: float) -> None:
        begin_s = math.floor(t_s / self.span_s) * self.span_s
        last = self._points[(self.count - 1) % POINTS]
        if self.count and begin_s <= last[0]:
            last[1:] = np.fmin(last[1], low), middle, np.fmax(last[3], high)
            return
        self._points[self.count % POINTS] = begin_s, low, middle, high
        self.count += 1

    def points(self) -> Floats:
        if self.count <= POINTS:
            return self._points[: self.count]
        return np.roll(self._points, -(self.count % POINTS), axis=0)


class Downsampled:
    """One series; each point has the smallest and the largest value within its span."""

    def __init__(self) -> None:
        self._resolutions = [_Resolution(span_s) for span_s in SPANS_S]

    def add(self, t_s: float, low: float, middle: float, high: float) -> None:
        """Add values of ``t_s``, which is no earlier than the last."""
        for resolution in self._resolutions:
            resolution.add(t_s, low, middle, high)

    def since(self, t_s: float) -> Floats:
        """Return the points from ``t_s`` on, of the finest resolution that has them all.

        ``(points, 4)``: a point's begin, its smallest value, its last median and its largest.
        """
        for resolution in self._resolutions:
            points = resolution.points()
            if resolution.count <= POINTS or (len(points) and points[0, 0] <= t_s):
                break
        return points[points[:, 0] >= t_s]
