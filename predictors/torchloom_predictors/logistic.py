"""Learn from telemetry and fault history which workers fail soon, with a logistic regression."""

from typing import Any

from torchloom_core.learning import RowOptions, Rows
from torchloom_core.plugin import Positive, Registry, hookimpl
from torchloom_predictors.regression import Regression, RegressionLearner, signed_log


class LogisticPredictor(RegressionLearner):
    """Weigh the features of every worker, each by its logarithm.

    A logistic regression with a ridge penalty (scikit-learn's LogisticRegression): of what is
    unknown a column says so, and it counts as the median. What it cannot find is what only two
    features together tell, so that it is what more elaborate predictors have to beat.
    """

    name = "logistic"

    class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.logistic]``.

        Attributes
        ----------
        metrics : tuple of str
            What is looked at; none: the history of faults only.
        spans_s : tuple of float
            Over how long each metric is summed up, seconds.
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

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options

    def grow(self, rows: Rows) -> Any:
        """Fit the coefficients on everything."""
        return Regression.fit(signed_log(rows.features), rows.failed, self._options.l2)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(LogisticPredictor)
