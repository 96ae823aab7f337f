"""Predict failures from jumps of a metric above a worker's own recent past."""

from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import FleetView, Floats, Hazard, Need, Positive, Registry, hookimpl

_HALF_LIVES = 5
"""Length of the window in half lives; older samples weigh less than 1/32."""

_LEAST_RELATIVE_SIGMA = 0.01
"""Least standard deviation relative to the mean, to ignore rounding."""


class EwmaPredictor:
    """Compare the newest sample with the exponentially weighted mean and variance before it.

    With ``mean`` and ``sigma`` of the past samples, each weighted by 2^(-age / half_life_s), the
    newest lies ``z = (newest - mean) / sigma`` above it. If a healthy worker's z is N(0, 1) and
    a failing one's N(sigmas, 1), Bayes' rule gives

        p = 1 / (1 + (1 - prior) / prior x exp(sigmas^2 / 2 - sigmas z))

    which is linear discriminant analysis with two classes of equal variance (Hastie, Tibshirani
    and Friedman, "The Elements of Statistical Learning", section 4.3). It reacts to a jump: a
    metric that stays high becomes the new mean within a few half lives.
    """

    name = "ewma"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.ewma]``."""

        metric: str = "gpu_temp_celsius"
        """A metric that rises before a failure."""
        half_life_s: Positive = 60.0
        """Age at which a sample weighs half, seconds."""
        sigmas: Annotated[float, msgspec.Meta(gt=0, le=100)] = 6.0
        """Expected rise of a failing worker's metric, in standard deviations."""
        min_sigma: Positive = 1e-6
        """Least standard deviation, in the metric's unit; in any case 1/100 of the mean."""
        min_samples: Annotated[int, msgspec.Meta(ge=2)] = 10
        """Least past samples for a forecast."""
        prior: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1e-3
        """Prior probability of a failure within ``horizon_s``."""
        horizon_s: Positive = 300.0
        every_s: Positive = 5.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._window_s = _HALF_LIVES * options.half_life_s
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = (Need(options.metric, self._window_s),)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN with too few or no fresh samples."""
        options = self._options
        past = np.array(view.window(options.metric, self._window_s))
        past[~np.isfinite(past)] = np.nan
        workers, samples = past.shape
        rows = np.arange(workers)
        last = samples - 1 - np.argmax(~np.isnan(past[:, ::-1]), axis=1)
        newest = np.where(np.isnan(view.latest(options.metric)), np.nan, past[rows, last])
        past[rows, last] = np.nan

        age_s = np.arange(samples - 1, -1, -1) * view.tick_s
        with np.errstate(over="ignore", invalid="ignore"):
            mean, sigma = self._past(past, 0.5 ** (age_s / options.half_life_s))
            z = (newest - mean) / sigma
            prior = np.log(options.prior / (1 - options.prior))
            log_odds = options.sigmas * z - options.sigmas**2 / 2 + prior
        probability = 0.5 * (1 + np.tanh(log_odds / 2))
        why = {
            row: (
                f"{options.metric} was {newest[row]:.6g}, {z[row]:.1f} standard deviations above "
                f"its mean {mean[row]:.6g}"
            )
            for row in np.flatnonzero(probability > options.prior).tolist()
        }
        return Hazard(probability=probability, why=why)

    def _past(self, past: Floats, weight_of: Floats) -> tuple[Floats, Floats]:
        """Return weighted mean and standard deviation, ``(workers,)``, NaN with few samples."""
        seen = ~np.isnan(past)
        weight = np.where(seen, weight_of, 0.0)
        total = weight.sum(axis=1)
        total[seen.sum(axis=1) < self._options.min_samples] = np.nan
        mean = np.where(seen, weight * past, 0.0).sum(axis=1) / total
        variance = np.where(seen, weight * (past - mean[:, None]) ** 2, 0.0).sum(axis=1) / total
        least = np.maximum(self._options.min_sigma, _LEAST_RELATIVE_SIGMA * np.abs(mean))
        return mean, np.maximum(np.sqrt(variance), least)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(EwmaPredictor)
