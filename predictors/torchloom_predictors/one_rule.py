"""Learn which one feature tells best who fails soon: what anything more has to beat."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchloom_core.learning import Rows
from torchloom_core.plugin import Floats, Registry, hookimpl
from torchloom_predictors.regression import Regression, RegressionLearner, signed_log


class OneRulePredictor(RegressionLearner):
    """Judge every worker by one feature alone, the one that ranks best in the examples.

    As Holte has it, "Very simple classification rules perform well on most commonly used
    datasets", Machine Learning 11, 1993; ranked by average precision, either way round. Its
    probability is that of a logistic regression on that feature.
    """

    name = "one_rule"

    def grow(self, rows: Rows) -> Any:
        """Fit a regression of which all coefficients but one are 0."""
        alone = np.zeros_like(rows.features)
        best = _best(rows)
        alone[:, best] = signed_log(rows.features[:, best])
        return Regression.fit(alone, rows.failed, self.l2)


def _best(rows: Rows) -> int:
    """Return the column that ranks best, whichever way round; of those alike the first."""
    return int(np.argmax([_reached(column, rows.failed) for column in rows.features.T]))


def _reached(column: Floats, failed: NDArray[np.bool_]) -> float:
    """Return the better average precision of ``(rows,)`` from high to low and from low to high.

    What is unknown ranks last. At a threshold all on one side of it alarm, so that it takes to sort
    once and to look the failures up.
    """
    known = np.sort(column[~np.isnan(column)])
    threshold, gained = np.unique(column[failed], return_counts=True, equal_nan=True)
    below = np.searchsorted(known, threshold, side="right")  # NaN: behind all that are known
    above = len(known) - np.searchsorted(known, threshold, side="left")
    unknown = np.isnan(threshold)
    best = 0.0
    for alarms in (below, above):
        alarms = np.where(unknown, len(column), alarms)
        order = np.argsort(alarms)
        precision = np.cumsum(gained[order]) / alarms[order]
        best = max(best, float(gained[order] @ precision / gained.sum()))
    return best


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(OneRulePredictor)
