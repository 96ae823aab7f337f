"""Samples of many workers at once, as in a recorded trace or the fleet model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The values of one scrape; live, they come as one telemetry batch per worker.

    Attributes
    ----------
    workers : tuple of str
        One per row; all must have sent a hello. Passing the same tuple again is fast.
    metrics : tuple of str
        One per column.
    values : (workers, metrics) float64
        NaN for a value that is missing or not valid.
    reported : (workers,) bool, optional
        False if a worker sent nothing; by default all have reported.
    state : sequence of str, optional
        The state that each worker reports; by default unchanged.
    step : (workers,) int64, optional
        Last finished step; by default unchanged.
    progress_age_s : float
        Seconds since the reporting workers last finished a step.
    """

    workers: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Floats
    reported: NDArray[np.bool_] | None = None
    state: tuple[str, ...] | None = None
    step: Ints | None = None
    progress_age_s: float = 0.0


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
