"""A logistic regression, the one that scikit-learn's imputer, scaler and regression would find.

To import those takes longer than to learn, and each of them examines what it is given, which takes
far longer than the sums.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.learning import RowLearner, RowOptions, arrays_bytes, arrays_part, minimum
from torchloom_core.plugin import Floats, Positive

_EPS = float(np.finfo(np.float64).eps)


def signed_log(numbers: Floats) -> Floats:
    """Return the signed logarithm, 0 for 0: counts and seconds span orders of magnitude."""
    logs: Floats = np.sign(numbers) * np.log1p(np.abs(numbers))
    return logs


class Regression(NamedTuple):
    """Numbers, standardised, to log odds; of what is unknown a column says so, it is the median.

    Attributes
    ----------
    median : (columns,) float64
        For what is unknown; 0 where everything was.
    flagged : (columns,) bool
        Of which some was unknown.
    mean, spread, coefficients : (columns + flags,) float64
    intercept : (1,) float64
    """

    median: Floats
    flagged: NDArray[np.bool_]
    mean: Floats
    spread: Floats
    coefficients: Floats
    intercept: Floats

    @classmethod
    def fit(cls, rows: Floats, failed: NDArray[np.bool_], l2: float) -> "Regression":
        """Return the likeliest, with a ridge penalty of ``l2`` on the coefficients."""
        unknown = np.isnan(rows)
        some = ~unknown.all(axis=0)
        median: Floats = np.zeros(rows.shape[1])
        median[some] = np.nanmedian(rows[:, some], axis=0)
        flagged = np.any(unknown, axis=0)
        numbers = np.hstack([np.where(unknown, median, rows), unknown[:, flagged]])
        mean, spread = _mean_and_spread(numbers)
        varies = spread > 0.0
        spread[~varies] = 1.0
        numbers = (numbers[:, varies] - mean[varies]) / spread[varies]
        coefficients: Floats = np.zeros(len(mean))
        coefficients[varies], intercept = _likeliest(numbers, failed, l2)
        return cls(median, flagged, mean, spread, coefficients, intercept)

    @classmethod
    def restore(cls, parts: Mapping[str, bytes], name: str, columns: int) -> "Regression":
        """Return the one on so many columns that :meth:`to_bytes` kept under ``name``.

        Raises
        ------
        ModelError
            If the part is missing or damaged, or anything else.
        """
        median, flagged = arrays_part(parts, name, {"median": (columns,), "flagged": (columns,)})
        width = (columns + int(np.count_nonzero(flagged)),)
        shapes = {"mean": width, "spread": width, "coefficients": width, "intercept": (1,)}
        return cls(median, flagged != 0.0, *arrays_part(parts, name, shapes))

    def to_bytes(self) -> bytes:
        """Return the numbers as safetensors keeps them."""
        return arrays_bytes({**self._asdict(), "flagged": self.flagged.astype(float)})

    def log_odds(self, rows: Floats) -> Floats:
        """Return ``(rows,)`` of ``(rows, columns)``."""
        unknown = np.isnan(rows)
        scaled = np.hstack([np.where(unknown, self.median, rows), unknown[:, self.flagged]])
        scaled -= self.mean
        scaled /= self.spread
        log_odds: Floats = scaled @ self.coefficients + self.intercept
        return log_odds


def _mean_and_spread(numbers: Floats) -> tuple[Floats, Floats]:
    """Return them of each column; the spread is 0 where it is none but rounding.

    Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American
    Statistician 37, 1983: the corrected two-pass algorithm, and the bound of its error.
    """
    count, mean = len(numbers), numbers.mean(axis=0)
    apart = numbers - mean
    variance = ((apart**2).sum(axis=0) - apart.sum(axis=0) ** 2 / count) / count
    smallest = _EPS * count
    rounding = smallest * variance + (smallest * mean) ** 2
    return mean, np.where(variance > rounding, np.sqrt(variance), 0.0)


def _likeliest(numbers: Floats, failed: NDArray[np.bool_], l2: float) -> tuple[Floats, Floats]:
    """Return ``(columns,)`` coefficients and ``(1,)`` intercept of the highest likelihood.

    Found by the steps of scikit-learn's LogisticRegression, which end where its do.
    """
    from scipy.special import expit

    count, came = len(failed), failed.astype(float)

    def loss(sought: Floats) -> tuple[float, Floats]:
        weights, log_odds = sought[:-1], numbers @ sought[:-1] + sought[-1]
        missed = expit(log_odds) - came
        value = (np.logaddexp(0.0, log_odds) - came * log_odds).sum() + l2 / 2 * weights @ weights
        gradient = np.append(missed @ numbers + l2 * weights, missed.sum())
        return float(value) / count, gradient / count

    start = np.zeros(numbers.shape[1] + 1)
    found = minimum(loss, start, maxiter=1000, maxls=50, gtol=1e-4, ftol=64 * _EPS)
    return found.x[:-1], found.x[-1:]


class RegressionOptions(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of ``[predictors.logistic]`` and of ``[predictors.one_rule]``.

    Attributes
    ----------
    metrics : tuple of str
        What is looked at; none: the history of faults only.
    spans_s : tuple of float
        Over how long each metric is summed up, seconds.
    attributes : tuple of str
        Numbers that do not change of a component, such as its size.
    groups : tuple of str
        What components have in common beside their rack, such as their model.
    half_lives_s : tuple of float
        Ages at which a fault counts half, seconds; none: no history of faults.
    seasons_s : tuple of float
        Periods, seconds: where in each a moment is; none: it is not looked at.
    incident_s : float
        Faults on one node closer together than this are one incident, seconds.
    max_healthy : int
        How many moments of workers that did not fail are kept to learn from.
    l2 : float
        Ridge penalty on the coefficients.
    seed : int
        Of the sample.
    horizon_s : float
        How far ahead the probability looks, seconds.
    every_s : float
        How often to forecast, seconds.
    """

    l2: Positive = 1.0


class RegressionLearner(RowLearner):
    """A predictor that weighs the features of every worker, each by its logarithm."""

    trusted: ClassVar = ()
    Options = RegressionOptions

    def __init__(self, options: RegressionOptions) -> None:
        super().__init__(options)
        self.l2 = options.l2

    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` of the regression."""
        log_odds: Floats = trees.log_odds(signed_log(features))
        return log_odds

    @property
    def part(self) -> str:
        """Name of the part that holds the regression."""
        return f"{self.name}.safetensors"

    def to_bytes(self, trees: Any) -> bytes:
        """Return the regression's numbers."""
        kept: bytes = trees.to_bytes()
        return kept

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the regression that was kept."""
        return Regression.restore({self.part: data}, self.part, columns)

    def check(self, trees: Any, columns: int) -> None:
        """Refuse nothing: a regression is checked when it is restored."""
