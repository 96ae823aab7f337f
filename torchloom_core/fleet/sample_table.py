"""One sample of many workers at once: how a recorded trace or the fleet model reports."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class SampleTable:
    """What one scrape brought; live, the same comes as one telemetry batch a worker.

    Attributes
    ----------
    workers : tuple of str
        One a row; all must have said hello. Handing in the same tuple again is fast.
    metrics : tuple of str
        One a column.
    values : (workers, metrics) float64
        NaN where a value is missing or not valid.
    reported : (workers,) bool, optional
        False where nothing at all came; absent: everybody was heard.
    state : sequence of str, optional
        What each worker says it does; absent: as before.
    step : (workers,) int64, optional
        Last finished step; absent: as before.
    progress_age_s : float
        Seconds since the workers heard last finished a step.
    """

    workers: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Floats
    reported: NDArray[np.bool_] | None = None
    state: tuple[str, ...] | None = None
    step: Ints | None = None
    progress_age_s: float = 0.0
