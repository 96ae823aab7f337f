"""Learn which one feature tells best who fails soon: what anything more has to beat."""

from typing import Any

import numpy as np

from torchloom_core.learning import Ranking, Rows
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

    def reached(column: Floats) -> float:
        ranks = (np.where(np.isnan(column), -np.inf, one) for one in (column, -column))
        return max(Ranking.of(rank, rows.failed).average_precision for rank in ranks)

    return int(np.argmax([reached(column) for column in rows.features.T]))


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(OneRulePredictor)
