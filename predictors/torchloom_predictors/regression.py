"""A logistic regression: scikit-learn finds its numbers, and here they are used.

A forecast asks it once for every interval ahead, and a pipeline of scikit-learn's examines what it
is given at each of its steps, which takes far longer than the sums.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torchloom_core.learning import RowLearner, RowOptions, estimator_bytes, estimator_part
from torchloom_core.plugin import Floats, ModelError, Positive

_TRUSTED = ("numpy.dtype",)


def signed_log(numbers: Floats) -> Floats:
    """Return the signed logarithm, 0 for 0: counts and seconds span orders of magnitude."""
    logs: Floats = np.sign(numbers) * np.log1p(np.abs(numbers))
    return logs


class Regression:
    """Numbers, standardised, to log odds; of what is unknown a column says so, it is the median.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        Imputer, scaler and regression, which have learned.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        imputer, scaler, logistic = (step for _, step in pipeline.steps)
        self._median: Floats = imputer.statistics_
        self._flagged: NDArray[np.intp] = imputer.indicator_.features_
        self._mean: Floats = scaler.mean_
        self._spread: Floats = scaler.scale_
        self._coefficients: Floats = logistic.coef_
        self._intercept: Floats = logistic.intercept_

    @classmethod
    def fit(cls, rows: Floats, failed: NDArray[np.bool_], l2: float) -> "Regression":
        """Return the likeliest, with a ridge penalty of ``l2`` on the coefficients."""
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from threadpoolctl import threadpool_limits

        pipeline = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
            StandardScaler(),
            LogisticRegression(C=1 / l2, max_iter=1000),
        )
        with threadpool_limits(limits=1):  # sums in another order are other coefficients
            return cls(pipeline.fit(rows, failed))

    @classmethod
    def restore(cls, parts: Mapping[str, bytes], name: str, columns: int) -> "Regression":
        """Return the one on so many columns that :meth:`to_bytes` kept under ``name``.

        Raises
        ------
        ModelError
            If the part is missing or damaged, or anything else.
        """
        pipeline = estimator_part(parts, name, _TRUSTED)
        try:
            regression = cls(pipeline)
            fits = regression._fits(columns)
        except (AttributeError, TypeError, ValueError):
            fits = False
        if not fits:
            raise ModelError(f"{name}: need a regression on {columns} columns, was another")
        return regression

    def to_bytes(self) -> bytes:
        """Return the pipeline as skops keeps it."""
        return estimator_bytes(self._pipeline)

    def log_odds(self, rows: Floats) -> Floats:
        """Return ``(rows,)`` of ``(rows, columns)``, as the pipeline's ``decision_function``."""
        unknown = np.isnan(rows)
        known = np.where(unknown, self._median, rows)
        scaled = np.hstack([known, unknown[:, self._flagged]])
        scaled -= self._mean
        scaled /= self._spread
        log_odds: Floats = (scaled @ self._coefficients.T + self._intercept)[:, 0]
        return log_odds

    def _fits(self, columns: int) -> bool:
        """Whether its numbers are those of so many columns, and of the flags beside them."""
        width = columns + len(self._flagged)
        return (
            self._median.shape == (columns,)
            and self._mean.shape == self._spread.shape == (width,)
            and self._coefficients.shape == (1, width)
            and self._intercept.shape == (1,)
        )


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

    def to_bytes(self, trees: Any) -> bytes:
        """Return the regression as skops keeps it."""
        kept: bytes = trees.to_bytes()
        return kept

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the regression that was kept."""
        return Regression.restore({self.part: data}, self.part, columns)

    def check(self, trees: Any, columns: int) -> None:
        """Refuse nothing: a regression is checked when it is restored."""
