"""Rank samples by score: precision and recall at every threshold, as in ``sklearn.metrics``.

By hand for speed: scikit-learn takes 10 times as long or more for the average precision of up to a
million samples, and seconds to import.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Ranking:
    """Samples by score, from high to low; thresholds are the scores of the positive samples.

    Attributes
    ----------
    score : (samples,) float64
    threshold : (thresholds,) float64
        From high to low, without duplicates.
    gained : (thresholds,) int64
        Positive samples that each threshold adds.
    alarms : (thresholds,) int64
        Samples at or above it.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Ranking
    >>> ranking = Ranking.of(np.array([0.9, 0.2, 0.7, 0.1]), np.array([True, False, False, True]))
    >>> ranking.precision, ranking.average_precision
    (array([1. , 0.5]), 0.75)
    """

    score: Floats
    threshold: Floats
    gained: Ints
    alarms: Ints

    @classmethod
    def of(cls, score: Floats, positive: NDArray[np.bool_]) -> "Ranking":
        """Rank ``(samples,)`` by a score that is nowhere NaN."""
        threshold, gained = np.unique(score[positive], return_counts=True)
        # Sorting the scores and looking up thresholds takes a quarter of the time of the reverse.
        alarms = len(score) - np.searchsorted(np.sort(score), threshold)
        return cls(score, threshold[::-1], gained[::-1], alarms[::-1])

    @cached_property
    def level(self) -> Ints:
        """``(samples,)`` first threshold at or below each score, one beyond the last if none."""
        level: Ints = np.searchsorted(-self.threshold, -self.score)
        return level

    @property
    def precision(self) -> Floats:
        """``(thresholds,)`` shares of the alarms that are right."""
        precision: Floats = np.cumsum(self.gained) / self.alarms
        return precision

    @property
    def average_precision(self) -> float:
        """Sum over thresholds of (recall gained) x precision; 0 without a positive one."""
        total = self.gained.sum()
        return float(self.gained @ self.precision / total) if total else 0.0


def precision_and_recall(
    score: Floats, positive: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats]:
    """Return precision, recall and threshold at every distinct score, from the lowest on.

    Parameters
    ----------
    score : (samples,) float64
        Without NaN.
    positive : (samples,) bool
        At least one.
    """
    threshold, at = np.unique(score, return_inverse=True)
    alarms = np.cumsum(np.bincount(at)[::-1])[::-1]
    right = np.cumsum(np.bincount(at, positive)[::-1])[::-1]
    return right / alarms, right / right[0], threshold
