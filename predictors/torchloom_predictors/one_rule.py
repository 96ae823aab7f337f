"""Predict failures from the single best feature, as a baseline."""

from typing import Any

import numpy as np

from torchloom_core.lab.learning import Ranking, Rows
from torchloom_core.plugin import Floats, Registry, hookimpl
from torchloom_predictors.regression import Regression, RegressionLearner, signed_log


class OneRulePredictor(RegressionLearner):
    """Use only the feature with the highest average precision, ascending or descending.

    Holte, "Very simple classification rules perform well on most commonly used datasets", Machine
    Learning 11, 1993. The probability is that of a logistic regression on that feature.
    """

    name = "one_rule"

    def grow(self, rows: Rows) -> Any:
        """Fit a regression in which all coefficients but one are 0."""
        alone = np.zeros_like(rows.features)
        best = _best(rows)
        alone[:, best] = signed_log(rows.features[:, best])
        return Regression.fit(alone, rows.failed, self.options.l2)


def _best(rows: Rows) -> int:
    """Return the first column with the highest average precision, ascending or descending."""

    def reached(column: Floats) -> float:
        ranks = (np.where(np.isnan(column), -np.inf, one) for one in (column, -column))
        return max(Ranking.of(rank, rows.failed).average_precision for rank in ranks)

    return int(np.argmax([reached(column) for column in rows.features.T]))


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(OneRulePredictor)
