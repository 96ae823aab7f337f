"""Turn what a predictor says into a probability that comes true as often as it says."""

import math
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from torchloom_core.learning.minimising import minimum
from torchloom_core.learning.task_wording import Told
from torchloom_core.plugin.arrays import Floats

CALIBRATION_AT_BOUND = "calibration_at_bound"

_SURE = 1e-9
_MAX_LOG_SLOPE = 3.0
_ROUNDING = 1e-6
"""Log odds that are no farther apart are the same but for rounding."""
_AS_IT_IS = (1.0, 0.0)
"""A stretch and a shift that change nothing."""
_UNTOLD = 2.0
"""So many failures that nothing told of, at the prevalence of the time before, are added: Agresti
and Coull's two, "Approximate is better than 'exact' for interval estimation", 1998."""

_ALIKE = 20
"""So many moments count as said alike by whoever has learned again."""

_MEANS = {
    "lower": (
        "The calibration ran into its lower bound: probabilities are nearly the same whatever the "
        "predictor says, and a policy that prices with them hardly tells one worker from another."
    ),
    "upper": (
        "The calibration ran into its upper bound: what came asked for probabilities further apart "
        "than it makes of what the predictor says. How likely it is stays a guess, and with it the "
        "price that a policy puts on it."
    ),
}


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sigmoid(slope x (stretch x logit(p) + shift) + intercept)``.

    Or ``p`` itself where nothing was fitted. Slope and intercept are Platt's, "Probabilistic
    outputs for support vector machines", 1999, on the logit. Slope and stretch are above 0, so that
    who is likelier to fail stays likelier.

    Attributes
    ----------
    stretch, shift : float, optional
        From what a predictor says that has learned from all the time to what it said when it was
        calibrated, see :meth:`carried_over`; absent where nobody held the one against the other.
    positives, failures : int
        Moments that a failure followed, or in an incident, and how many of these they were.
    """

    stretch: Annotated[float, msgspec.Meta(gt=0, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    shift: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)] | msgspec.UnsetType = msgspec.UNSET
    slope: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    intercept: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)] = 0.0
    positives: int = 0
    failures: int = 0

    @property
    def is_identity(self) -> bool:
        """Whether probabilities are left as they are."""
        return self.slope == 1.0 and self.intercept == 0.0

    def apply(self, probability: Floats) -> Floats:
        """Return the calibrated probabilities; NaN stays NaN."""
        stretch, shift = self._line
        if self.is_identity and (stretch, shift) == _AS_IT_IS:
            return probability
        said = stretch * _logit(probability) + shift
        return _sigmoid(self.slope * said + self.intercept)

    def carried_over(self, calibrated: Floats, learned_again: Floats) -> "Calibration":
        """Return the same of a predictor that has learned again, from more.

        It may be surer of everything, or less sure. So a straight line takes its log odds to those
        of the predictor that was calibrated, quantile by quantile, each of the weight of its
        probability: few are likely to fail, and it is they who count. Twenty moments more, of which
        both said the same, draw a line through few towards none.

        Parameters
        ----------
        calibrated, learned_again : float64
            What each said, uncalibrated, of the same moments, of which neither had learned.
        """
        both = ~np.isnan(calibrated) & ~np.isnan(learned_again)
        if not both.any():
            return self
        wanted, said = np.sort(_logit(calibrated[both])), np.sort(_logit(learned_again[both]))
        weight = _sigmoid(wanted)
        weight /= weight.sum()
        middle, mean = weight @ wanted, weight @ said
        spread = weight @ (said - mean) ** 2
        together = weight @ ((said - mean) * (wanted - middle))
        tells_apart = min(np.ptp(wanted), np.ptp(said)) > _ROUNDING
        stretch = together / spread if tells_apart else 1.0
        stretch = float(np.clip(stretch, math.exp(-_MAX_LOG_SLOPE), math.exp(_MAX_LOG_SLOPE)))
        seen = len(said) / (len(said) + _ALIKE)
        return replace(
            self,
            stretch=float(1.0 + seen * (stretch - 1.0)),
            shift=float(seen * (middle - stretch * mean)),
        )

    @property
    def bound(self) -> Literal["", "lower", "upper"]:
        """At which end of its range the slope was stopped, if it was."""
        log_slope = math.log(self.slope)
        if not math.isclose(abs(log_slope), _MAX_LOG_SLOPE, rel_tol=1e-3):
            return ""
        return "lower" if log_slope < 0 else "upper"

    def text(self, told: Told) -> str:
        """Return what was done, for people."""
        if self.is_identity:
            return f"none: no {told.one} to calibrate on{self._carried}"
        return (
            f"Platt's on {told.count(self.failures)}, {self.positives} moments {told.before}: "
            f"slope {self.slope:.3g}{f' (its {self.bound} bound)' if self.bound else ''}, "
            f"intercept {self.intercept:.3g}{self._carried}"
        )

    @property
    def _line(self) -> tuple[float, float]:
        if self.stretch is msgspec.UNSET or self.shift is msgspec.UNSET:
            return _AS_IT_IS
        return self.stretch, self.shift

    @property
    def _carried(self) -> str:
        stretch, shift = self._line
        if (stretch, shift) == _AS_IT_IS:
            return ""
        return f"; of its log odds since it learned again x {stretch:.3g} {shift:+.3g}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Doubts about the probabilities, for the score."""
        return (f"{CALIBRATION_AT_BOUND}: {self.bound}",) if self.bound else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the doubts mean, one sentence each."""
        return (_MEANS[self.bound],) if self.bound else ()


def calibrate(
    probability: Floats, outcome: Floats, *, failures: int, prevalence: float
) -> Calibration:
    """Fit by maximum likelihood where both are known.

    However often it was asked before a failure, that counts as one failure: all moments together
    weigh as many positive ones as there were failures. Two more, which nothing told of, draw few
    of them to the prevalence.

    Parameters
    ----------
    probability, outcome : (times, components) float64
        Moments at which one of them is NaN are left out.
    failures : int
        How many failures the positive moments were before.
    prevalence : float
        The share of positive moments in the time before; what it is here where that is 0.
    """
    known = ~np.isnan(probability) & ~np.isnan(outcome)
    came = outcome[known]
    positives = int(came.sum())
    if not 0 < positives < len(came):
        return Calibration(positives=positives, failures=failures)
    # Probabilities are few: a forecast is often the same for most components.
    levels, level = np.unique(probability[known], return_inverse=True)
    said = _logit(levels)
    often, positive = np.bincount(level), np.bincount(level, came)
    prevalence = prevalence or positives / len(came)
    weight, untold = failures / positives, _UNTOLD * often / len(came)
    failed = weight * positive + untold
    healthy = weight * (often - positive) + untold * (1.0 - prevalence) / prevalence

    weights = failed + healthy

    def loss(parameters: Floats) -> tuple[float, Floats]:
        slope = np.exp(parameters[0])
        margin = slope * said + parameters[1]
        tail = np.exp(-np.abs(margin))
        loss = (weights * (np.maximum(margin, 0.0) + np.log1p(tail)) - failed * margin).sum()
        error = weights * (np.where(margin > 0.0, 1.0, tail) / (1.0 + tail)) - failed
        return float(loss), np.array([(error * said).sum() * slope, error.sum()])

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
