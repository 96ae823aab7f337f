"""A byte for each worker: the frames that a heatmap is painted from, whole or as a change.

A frame is little-endian: kind (1 whole, 2 change), channel (0 states, 1 values), two zero
bytes, the number of rows as ``uint32``, the values of the bytes 1 and 255 as ``float64`` each,
and then a byte for each row, or a bit for each row (changed or not) and a byte for each that has
changed.
"""

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats
from torchloom_core.live.dashboard.board import Bytes

WHOLE, CHANGE = 1, 2
STATES, VALUES = 0, 1

_HEADER = struct.Struct("<BBHIdd")
_OUTLIERS_PERCENT = 1.0
_FAR = 1e300
"""Larger values are clipped."""

_NARROW = 0.3
"""A scale of which a smaller share is used is replaced."""

_LOW_RATIO, _HIGH_RATIO = 0.5, 2.0
"""A scale of positive values reaches from and to these multiples of their median: a small
difference looks small."""

_SMALL = 64
_ENDS = 5
"""Rows at each end that are listed of a fleet larger than ``_SMALL``."""


class Scale(NamedTuple):
    """The values that the bytes 1 and 255 stand for."""

    low: float
    high: float


def scale_of(values: Floats, before: Scale | None) -> Scale:
    """Return a scale for the values: the one before while they fit it.

    It covers the values but for the first and the last percent, and of positive values at least
    ``_LOW_RATIO`` to ``_HIGH_RATIO`` times the median. Values outside are clipped to its ends.
    """
    finite = np.clip(values[np.isfinite(values)], -_FAR, _FAR)
    if not len(finite):
        return before or Scale(0.0, 1.0)
    low, high = np.percentile(finite, [_OUTLIERS_PERCENT, 100.0 - _OUTLIERS_PERCENT])
    low, high = float(low), float(high)
    median = float(np.median(finite))
    if median > 0.0 <= low:
        low, high = min(low, _LOW_RATIO * median), max(high, _HIGH_RATIO * median)
    if before is not None:
        width = before.high - before.low
        inside = before.low <= low and high <= before.high
        if inside and (high - low >= _NARROW * width or high == low):
            return before
    margin = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(low - margin, high + margin)


def bytes_of(values: Floats, scale: Scale) -> Bytes:
    """Return each value as 1 to 255 on a scale, 0 for NaN."""
    width = scale.high - scale.low
    share = (np.clip(values, scale.low, scale.high) - scale.low) / (width or 1.0)
    painted = 1.0 + np.rint(254.0 * share)
    return np.where(np.isnan(values), 0.0, painted).astype(np.uint8)


def extremes_of(values: Floats) -> list[tuple[int, float]]:
    """Return rows and their exact values, the largest first: all of a small fleet, else the ends.

    Values that are not finite are left out.

    Examples
    --------
    >>> extremes_of(np.array([0.1, np.nan, 7.0]))
    [(2, 7.0), (0, 0.1)]
    """
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) > _SMALL:
        ends = np.argpartition(values[rows], (_ENDS, len(rows) - _ENDS - 1))
        rows = rows[np.concatenate([ends[:_ENDS], ends[-_ENDS:]])]
    rows = rows[np.argsort(-values[rows], kind="stable")]
    return [(int(row), float(values[row])) for row in rows]


class Painter:
    """One channel (``STATES`` or ``VALUES``) of one browser: makes the frame that it lacks."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._sent: Bytes | None = None
        self._scale = Scale(0.0, 0.0)

    def frame(self, rows: Bytes, scale: Scale = Scale(0.0, 0.0)) -> bytes:  # noqa: B008
        """Return the frame that updates the browser to ``rows``, empty if nothing has changed."""
        before, self._sent = self._sent, rows
        is_other = before is None or len(before) != len(rows) or scale != self._scale
        self._scale = scale
        if is_other or before is None:
            return self._header(WHOLE, len(rows)) + rows.tobytes()
        changed: NDArray[np.bool_] = before != rows
        count = int(np.count_nonzero(changed))
        if not count:
            return b""
        if count + len(rows) / 8 >= len(rows):
            return self._header(WHOLE, len(rows)) + rows.tobytes()
        which = np.packbits(changed, bitorder="little").tobytes()
        return self._header(CHANGE, len(rows)) + which + rows[changed].tobytes()

    def forget(self) -> None:
        """Send a whole frame next time: the browser shows another metric."""
        self._sent = None

    def _header(self, kind: int, count: int) -> bytes:
        return _HEADER.pack(kind, self._channel, 0, count, *self._scale)
