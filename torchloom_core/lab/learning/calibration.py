"""Calibrate a predictor's probabilities, so that they agree with observed rates."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.learning.forecast_score import TaskWording

CALIBRATION_AT_BOUND = "calibration_at_bound"

_SURE = 1e-9
_MAX_LOG_SLOPE = 3.0
_ROUNDING = 1e-6
"""Smaller differences of log odds are rounding errors."""
_IDENTITY = (1.0, 0.0)
"""A stretch and a shift that change nothing."""
_PRIOR_FAILURES = 2.0
"""Pseudo-failures added at the training time's prevalence: Agresti and Coull's two, "Approximate is
better than 'exact' for interval estimation", 1998."""

_PSEUDO_MOMENTS = 20
"""Pseudo-moments on which the refit agrees with the first fit."""

_MEANS = {
    "lower": (
        "The calibration is at its lower bound: all probabilities are nearly the same, so a policy "
        "that uses them as prices hardly distinguishes workers."
    ),
    "upper": (
        "The calibration is at its upper bound: outcomes call for probabilities further apart than "
        "the predictor's output allows, so probabilities, and prices based on them, are rough."
    ),
}


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sigmoid(slope x (stretch x logit(p) + shift) + intercept)``.

    Or ``p`` itself if nothing was fitted. Slope and intercept are Platt's, "Probabilistic outputs
    for support vector machines", 1999, on the logit. Slope and stretch are above 0, which preserves
    the ranking.
    """

    stretch: Annotated[float, msgspec.Meta(gt=0, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    shift: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)] | msgspec.UnsetType = msgspec.UNSET
    """Map the log odds of the refit to those of the fit that was calibrated, see
    :meth:`carried_over`; absent if there was no common moment."""
    slope: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    intercept: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)] = 0.0
    positives: int = 0
    failures: int = 0
    """Positive moments, and the failures or incidents that they belong to."""

    @property
    def is_identity(self) -> bool:
        """Whether the calibration leaves probabilities unchanged."""
        return self.slope == 1.0 and self.intercept == 0.0

    def apply(self, probability: Floats) -> Floats:
        """Return the calibrated probabilities; NaN stays NaN."""
        stretch, shift = self._line
        if self.is_identity and (stretch, shift) == _IDENTITY:
            return probability
        log_odds = stretch * _logit(probability) + shift
        return _sigmoid(self.slope * log_odds + self.intercept)

    def carried_over(self, calibrated: Floats, learned_again: Floats) -> "Calibration":
        """Return the calibration for a refit of the predictor on more data.

        The refit may be more or less confident. A straight line maps its log odds to those of the
        calibrated fit, quantile by quantile, weighted by probability, as the few workers at risk
        matter most. Twenty pseudo-moments on which both agree shrink the line to the identity. Both
        probabilities are uncalibrated, at the same moments, outside of the training time of either.
        """
        both = ~np.isnan(calibrated) & ~np.isnan(learned_again)
        if not both.any():
            return self
        wanted, refit = np.sort(_logit(calibrated[both])), np.sort(_logit(learned_again[both]))
        weight = _sigmoid(wanted)
        weight /= weight.sum()
        middle, mean = weight @ wanted, weight @ refit
        variance = weight @ (refit - mean) ** 2
        covariance = weight @ ((refit - mean) * (wanted - middle))
        varies = min(np.ptp(wanted), np.ptp(refit)) > _ROUNDING
        stretch = covariance / variance if varies else 1.0
        stretch = float(np.clip(stretch, math.exp(-_MAX_LOG_SLOPE), math.exp(_MAX_LOG_SLOPE)))
        seen = len(refit) / (len(refit) + _PSEUDO_MOMENTS)
        return replace(
            self,
            stretch=float(1.0 + seen * (stretch - 1.0)),
            shift=float(seen * (middle - stretch * mean)),
        )

    @property
    def bound(self) -> Literal["", "lower", "upper"]:
        """The bound that the slope reached; "" if none."""
        log_slope = math.log(self.slope)
        if not math.isclose(abs(log_slope), _MAX_LOG_SLOPE, rel_tol=1e-3):
            return ""
        return "lower" if log_slope < 0 else "upper"

    def text(self, wording: TaskWording) -> str:
        """Return a description for the card."""
        if self.is_identity:
            return f"none: no {wording.one} to calibrate on{self._carried}"
        return (
            f"Platt scaling, {wording.count(self.failures)}, {self.positives} moments "
            f"{wording.before}: "
            f"slope {self.slope:.3g}{f' (its {self.bound} bound)' if self.bound else ''}, "
            f"intercept {self.intercept:.3g}{self._carried}"
        )

    @property
    def _line(self) -> tuple[float, float]:
        if self.stretch is msgspec.UNSET or self.shift is msgspec.UNSET:
            return _IDENTITY
        return self.stretch, self.shift

    @property
    def _carried(self) -> str:
        stretch, shift = self._line
        if (stretch, shift) == _IDENTITY:
            return ""
        return f"; log odds of the refit x {stretch:.3g} {shift:+.3g}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for the score."""
        return (f"{CALIBRATION_AT_BOUND}: {self.bound}",) if self.bound else ()

    @property
    def limits(self) -> tuple[str, ...]:
        """What the flags mean, one sentence each."""
        return (_MEANS[self.bound],) if self.bound else ()


def calibrate(
    probability: Floats, outcome: Floats, *, failures: int, prevalence: float
) -> Calibration:
    """Fit a calibration by maximum likelihood to ``(times, components)``; NaN is left out.

    A failure counts once, however many moments precede it: the positive moments together have the
    weight of the number of failures. Two pseudo-failures at the prevalence of the training time, or
    if that is 0 of these moments, shrink the fit.
    """
    known = ~np.isnan(probability) & ~np.isnan(outcome)
    came = outcome[known]
    positives = int(came.sum())
    if not 0 < positives < len(came):
        return Calibration(positives=positives, failures=failures)
    # Distinct probabilities are few: most components often have the same.
    levels, level = np.unique(probability[known], return_inverse=True)
    log_odds = _logit(levels)
    often, positive = np.bincount(level), np.bincount(level, came)
    prevalence = prevalence or positives / len(came)
    weight, prior = failures / positives, _PRIOR_FAILURES * often / len(came)
    failed = weight * positive + prior
    healthy = weight * (often - positive) + prior * (1.0 - prevalence) / prevalence

    weights = failed + healthy

    def loss(parameters: Floats) -> tuple[float, Floats]:
        slope = np.exp(parameters[0])
        margin = slope * log_odds + parameters[1]
        tail = np.exp(-np.abs(margin))
        loss = (weights * (np.maximum(margin, 0.0) + np.log1p(tail)) - failed * margin).sum()
        error = weights * (np.where(margin > 0.0, 1.0, tail) / (1.0 + tail)) - failed
        return float(loss), np.array([(error * log_odds).sum() * slope, error.sum()])

    start = np.log(failed.sum() / healthy.sum())
    bounds = [(-_MAX_LOG_SLOPE, _MAX_LOG_SLOPE), (None, None)]
    best = min(
        (
            minimum(loss, np.array([0.0, intercept]), bounds=bounds)
            for intercept in (0.0, float(start))
        ),
        key=lambda found: float(found.fun),
    )
    return Calibration(
        slope=float(np.exp(best.x[0])),
        intercept=float(best.x[1]),
        positives=positives,
        failures=failures,
    )


def _logit(probability: Floats) -> Floats:
    inner = np.clip(probability, _SURE, 1.0 - _SURE)
    logit: Floats = np.log(inner) - np.log1p(-inner)
    return logit


def _sigmoid(values: Floats) -> Floats:
    half: Floats = 0.5 * (1.0 + np.tanh(0.5 * values))
    return half


def minimum(
    loss: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    *,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    **options: Any,
) -> Any:
    """Return ``x`` and ``fun`` of scipy's L-BFGS-B from ``start`` on, on one thread.

    Its matrices are so small that BLAS threads would wait for one another most of the time.
    ``loss`` returns its value and its gradient ``(parameters,)``; ``bounds`` are the lowest and
    highest of each parameter.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import minimum
    >>> found = minimum(lambda at: (((at - 3.0) ** 2).sum(), 2.0 * (at - 3.0)), np.zeros(2))
    >>> found.x.round(6)
    array([3., 3.])
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):  # limits only libraries that are loaded by now
        return minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
