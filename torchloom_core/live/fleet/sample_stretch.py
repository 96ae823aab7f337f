"""The samples of several ticks at once, for a fast pass over a recorded trace."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class SampleStretch:
    """The scrapes of consecutive ticks, without other inputs between them.

    Attributes
    ----------
    workers : tuple of str
        All must have sent a hello. Passing the same tuple again is fast.
    metrics : tuple of str
    ts_ns : (ticks,) int64
        The end of each tick; at least one.
    values : (metrics, ticks, workers) float64
        NaN for a value that is missing or not valid.
    reported : (ticks, workers) bool
        False if the worker itself sent nothing; its values do not count then.
    """

    workers: tuple[str, ...]
    metrics: tuple[str, ...]
    ts_ns: Ints
    values: Floats
    reported: NDArray[np.bool_]
