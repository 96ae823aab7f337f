"""The samples of several ticks at once: how a recorded trace is passed over quickly."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class SampleStretch:
    """What the scrapes of several ticks brought, between which nothing else happened.

    Attributes
    ----------
    workers : tuple of str
        All must have said hello. Handing in the same tuple again is fast.
    metrics : tuple of str
    ts_ns : (ticks,) int64
        When each tick ended; at least one.
    values : (metrics, ticks, workers) float64
        NaN where a value is missing or not valid.
    reported : (ticks, workers) bool
        False where nothing came of the worker itself; its values do not count then.
    """

    workers: tuple[str, ...]
    metrics: tuple[str, ...]
    ts_ns: Ints
    values: Floats
    reported: NDArray[np.bool_]
