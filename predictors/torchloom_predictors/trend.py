"""Predict when a rising metric crosses a level, by a straight line through its recent past."""

import math
import sys
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.learning import in_words
from torchloom_core.plugin import FleetView, Floats, Hazard, Need, Positive, Registry, hookimpl

_RISING_T = 3.0
"""A slope below this many standard errors is not a rise."""

_OUT_OF_REACH = 6.0
"""A level this many standard deviations above the prediction counts as unreachable: p < 1e-9."""


class TrendPredictor:
    """Extrapolate each rising metric by ordinary least squares to the end of the horizon.

    The probability is that of an observation at ``horizon_s`` from now being at or above
    ``level``: with the line's prediction ``y`` and its standard deviation

        s = sigma sqrt(1 + 1/n + (t - mean t)^2 / sum (t_i - mean t)^2)

    it is Phi((y - level) / s); sigma^2 is the residual variance (Seber and Lee, "Linear
    Regression Analysis", 2nd ed., section 5.3). A worker at or above the level already has 1,
    one whose metric does not rise has 0. All workers' slopes are computed at once; only those
    that rise, and might reach the level, are fitted by statsmodels.
    """

    name = "trend"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.trend]``."""

        metric: str = "gpu_temp_celsius"
        """A metric that rises before a failure."""
        level: Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)] = 95.0
        """Value from which the worker counts as failed, in the metric's unit."""
        window_s: Positive = 120.0
        min_samples: Annotated[int, msgspec.Meta(ge=4)] = 10
        """Length of the past for the line, seconds, and least samples in it."""
        horizon_s: Positive = 120.0
        every_s: Positive = 5.0

    def __init__(self, options: Options) -> None:
        # Imported here, as it takes a second that only a run with this predictor should pay.
        from statsmodels.regression.linear_model import OLS

        self._ols = OLS
        self._options = options
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = (Need(options.metric, options.window_s),)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN with too few or no fresh samples."""
        options = self._options
        past = view.window(options.metric, options.window_s)
        past = np.where(np.isfinite(past), past, np.nan)
        newest = view.latest(options.metric)
        seconds = np.arange(1 - past.shape[1], 1) * view.tick_s
        judged = ~np.isnan(newest)
        judged &= np.count_nonzero(~np.isnan(past), axis=1) >= options.min_samples
        over = judged & (newest >= options.level)
        probability = np.where(judged, over.astype(float), np.nan)
        why = {
            row: f"{options.metric} was {newest[row]:.6g}, not below {options.level:g}"
            for row in np.flatnonzero(over).tolist()
        }
        rows = np.flatnonzero(judged & ~over)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rising = rows[_may_reach(past[rows], seconds, options.horizon_s, options.level)]
            for row in rising.tolist():
                probability[row], slope = self._fit(past[row], seconds)
                if slope > 0:
                    why[row] = self._approaches(newest[row], slope)
        return Hazard(probability=probability, why=why)

    def _fit(self, values: Floats, seconds: Floats) -> tuple[float, float]:
        """Return the probability of being over the level at the horizon, and the slope."""
        seen = ~np.isnan(values)
        line = self._ols(values[seen], _with_constant(seconds[seen])).fit()
        ahead: Any = line.get_prediction(_with_constant(np.array([self.horizon_s])))
        above = float(ahead.predicted_mean[0]) - self._options.level
        spread = max(float(np.sqrt(ahead.var_pred_mean[0] + line.scale)), sys.float_info.min)
        return 0.5 * math.erfc(-above / spread / math.sqrt(2)), float(line.params[1])

    def _approaches(self, value: float, slope: float) -> str:
        options = self._options
        left_s = (options.level - value) / slope
        return (
            f"{options.metric} was {value:.6g} and rises {slope:.3g} a second: it reaches "
            f"{options.level:g} in about {in_words(round(left_s))}"
        )


def _with_constant(seconds: Floats) -> Floats:
    return np.column_stack([np.ones_like(seconds), seconds])


def _may_reach(past: Floats, seconds: Floats, horizon_s: float, level: float) -> NDArray[np.bool_]:
    """Return ``(workers,)``: whether the line rises significantly and may reach the level in time.

    The same least squares as in the class, for all rows at once, without NaNs.
    """
    seen = ~np.isnan(past)
    n = seen.sum(axis=1)
    y = np.where(seen, past, 0.0)
    mean_t = seen @ seconds / n
    mean_y = y.sum(axis=1) / n
    t = np.where(seen, seconds - mean_t[:, None], 0.0)
    sxx = (t * t).sum(axis=1)
    slope = (t * y).sum(axis=1) / sxx
    residual = np.where(seen, past - mean_y[:, None] - slope[:, None] * t, 0.0)
    sigma = np.sqrt((residual**2).sum(axis=1) / (n - 2))
    ahead = horizon_s - mean_t
    predicted = mean_y + slope * ahead
    spread = sigma * np.sqrt(1 + 1 / n + ahead**2 / sxx)
    rises: NDArray[np.bool_] = (slope > 0) & (slope >= _RISING_T * sigma / np.sqrt(sxx))
    reaches: NDArray[np.bool_] = predicted + _OUT_OF_REACH * spread >= level
    return rises & reaches


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(TrendPredictor)
