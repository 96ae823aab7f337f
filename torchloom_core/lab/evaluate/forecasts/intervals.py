"""95 % intervals: exact ones for counts, clustered ones for samples in time and component."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.learning.forecast_score import Interval
from torchloom_core.lab.learning.ranking import Ranking, poisson_between

_DAY_S = 86_400.0
_LOW, _HIGH = 0.025, 0.975
_FEWEST = 5
"""Minimum number of time clusters."""


def exact_rate(count: int, exposure: float) -> Interval:
    """Return the rate of a Poisson process, with its exact interval; 0 without exposure."""
    if exposure <= 0:
        return Interval(value=0.0, method="no component was watched")
    low, high = poisson_between(count)
    return Interval(
        value=count / exposure,
        low=low / exposure,
        high=high / exposure,
        method="exact, of a Poisson count",
    )


def exact_share(count: int, other: int) -> Interval:
    """Return ``count / (count + other)`` of two Poisson counts, with its exact interval.

    Given their sum, one of two Poisson counts is binomial: Clopper and Pearson, "The use of
    confidence or fiducial limits", Biometrika 26, 1934. With both counts 0 the share is 0, without
    an interval.
    """
    from scipy.special import betaincinv

    if count + other == 0:
        return Interval(value=0.0, method="both counts are 0")
    low = betaincinv(count, other + 1, _LOW) if count else 0.0
    high = betaincinv(count + 1, other, _HIGH) if other else 1.0
    return Interval(
        value=count / (count + other),
        low=float(low),
        high=float(high),
        method="exact, of two Poisson counts",
    )


@dataclass(frozen=True, eq=False)
class Estimate:
    """A statistic, and its derivative by each sample's weight, ``(samples,)``; they sum to 0."""

    value: float
    influence: Floats


def average_precision(score: Floats, positive: NDArray[np.bool_]) -> Estimate:
    """Return the average precision of ``(samples,)``."""
    total = np.count_nonzero(positive)
    if not total:
        return Estimate(0.0, np.zeros(len(score)))
    ranking = Ranking.of(score, positive)
    value, precision = ranking.average_precision, ranking.precision
    # A sample is an alarm at its own threshold and at all lower ones.
    for_hit = _from_here_on(ranking.gained / ranking.alarms)
    for_alarm = _from_here_on(ranking.gained * precision / ranking.alarms)
    hit = np.append(precision, 0.0) - value + for_hit
    influence = (np.where(positive, hit[ranking.level], 0.0) - for_alarm[ranking.level]) / total
    return Estimate(value, influence)


def _from_here_on(terms: Floats) -> Floats:
    """Return the sums from each term to the last, with a final 0."""
    sums: Floats = np.append(np.cumsum(terms[::-1])[::-1], 0.0)
    return sums


def ratio(above: Floats, below: Floats) -> Estimate:
    """Return the ratio of two sums over samples; the denominator is not 0."""
    value = float(above.sum() / below.sum())
    return Estimate(value, (above - value * below) / below.sum())


class Clusters:
    """Clusters of dependent samples: those of one stretch of time, and those of one component.

    Outcomes within ``horizon_s`` share failures, so a stretch is two horizons long, or a day if
    that is longer; there are at least five stretches. The cells of ``is_sample``, ``(times,
    components)``, are ordered by time, then component.
    """

    def __init__(self, times_ns: Ints, is_sample: NDArray[np.bool_], horizon_s: float) -> None:
        length_s = max(_DAY_S, 2.0 * horizon_s)
        since_s = (times_ns - times_ns[0]) / SECOND_NS
        if since_s[-1] < _FEWEST * length_s:
            length_s = max(float(since_s[-1]), 1e-9) * (1.0 + 1e-9) / _FEWEST
        stretch = (since_s // length_s).astype(np.int64)
        time, self._component = np.nonzero(is_sample)
        starts = np.flatnonzero(np.diff(stretch[time], prepend=-1))
        self._spans = list(pairwise([*starts, len(time)]))
        self._size = is_sample.shape[1]
        self.stretches, self.stretch_s = len(self._spans), length_s
        self._watched = is_sample.any(axis=0)
        self.components = int(self._watched.sum())

    @property
    def text(self) -> str:
        """Description of the method, for the report."""
        stretches = f"{self.stretches} stretches of {self.stretch_s / _DAY_S:.3g} d"
        components = f"{self.components} component{'s' if self.components != 1 else ''}"
        return f"Student's t, clustered by {stretches} and by {components}"

    def error(self, influence: Floats) -> float:
        """Return the standard error of a statistic."""
        return math.sqrt(self._variance(influence).value)

    def reach(self, influence: Floats) -> float:
        """Return the half-width of the interval of a statistic, by Student's t."""
        from scipy.special import stdtrit

        variance = self._variance(influence)
        return math.sqrt(variance.value) * float(stdtrit(max(variance.freedom, 1.0), _HIGH))

    def _variance(self, influence: Floats) -> "_Variance":
        """Return the variance of a statistic.

        Clustered both ways: Cameron, Gelbach and Miller, "Robust inference with multiway
        clustering", Journal of Business & Economic Statistics 29, 2011; at least the larger
        of the one-way variances. The degrees of freedom of a sum are Satterthwaite's, "An
        approximate distribution of estimates of variance components", Biometrics Bulletin 2, 1946.
        """
        by_time = np.zeros(len(self._spans))
        by_component: Floats = np.zeros(self._size)
        by_cell = 0.0
        for number, (start, end) in enumerate(self._spans):
            cells = np.bincount(self._component[start:end], influence[start:end], self._size)
            by_time[number] = cells.sum()
            by_cell += float(cells @ cells)
            by_component += cells
        of_time = _Variance.of(by_time)
        of_component = _Variance.of(by_component[self._watched])
        both = of_time.value + of_component.value - by_cell
        parts = [one.value**2 / one.freedom for one in (of_time, of_component)]
        summed = _Variance(both, both**2 / sum(parts) if sum(parts) else 1.0)
        return max(of_time, of_component, summed, key=lambda one: one.value)

    def share(self, estimate: Estimate) -> Interval:
        """Return a statistic between 0 and 1, with an interval on the logit scale."""
        value, half = estimate.value, self.reach(estimate.influence)
        low = high = value
        if 0.0 < value < 1.0:
            middle, half = math.log(value / (1.0 - value)), half / value / (1.0 - value)
            low, high = _sigmoid(middle - half), _sigmoid(middle + half)
        return Interval(value=value, low=low, high=high, method=self.text)

    def rate(self, estimate: Estimate) -> Interval:
        """Return a statistic above 0, with an interval on the log scale."""
        value = estimate.value
        factor = math.exp(min(self.reach(estimate.influence) / value, 700.0))
        return Interval(value=value, low=value / factor, high=value * factor, method=self.text)

    def difference(self, one: Estimate, other: Estimate) -> Interval:
        """Return the difference of two shares of the same samples.

        From the intervals of both: Zou and Donner, "Construction of confidence limits about effect
        measures: a general approach", Statistics in Medicine 27, 2008. It accounts for
        their correlation.
        """
        down, up = _sides(self.share(one))
        other_down, other_up = _sides(self.share(other))
        correlation = self._correlation(one.influence, other.influence)
        value = one.value - other.value
        return Interval(
            value=value,
            low=value - _reach(down, other_down, other_up, correlation),
            high=value + _reach(up, other_up, other_down, correlation),
            method=self.text,
        )

    def _correlation(self, one: Floats, other: Floats) -> float:
        """Return the correlation of two statistics, from the errors of their sum and difference."""
        scale = self.error(one) * self.error(other)
        if scale <= 0.0:
            return 0.0
        covariance = (self.error(one + other) ** 2 - self.error(one - other) ** 2) / 4.0
        return max(-1.0, min(covariance / scale, 1.0))


class _Variance(NamedTuple):
    """A variance estimate and its degrees of freedom."""

    value: float
    freedom: float

    @classmethod
    def of(cls, sums: Floats) -> "_Variance":
        """Return the variance of a statistic from its influences summed by cluster.

        If few of many clusters dominate, the degrees of freedom are fewer: 2 E^2 / Var of the sum
        of squares, at most the number of clusters less one.
        """
        clusters, squares = len(sums), sums**2
        total = float(squares.sum())
        spread = float(squares @ squares) - total**2 / clusters
        freedom = 2.0 * total**2 / spread if spread > 0.0 else math.inf
        few = max(clusters - 1, 1)
        return cls(total * clusters / few, min(freedom, few))


def _sides(interval: Interval) -> tuple[float, float]:
    """Return the distances of the lower and the upper end of an interval from its value."""
    assert interval.low is not None
    assert interval.high is not None
    return interval.value - interval.low, interval.high - interval.value


def _reach(own: float, same: float, opposite: float, correlation: float) -> float:
    """Return the distance of one end of a difference's interval from its value.

    From the distances of the first interval on that side, and of the second on the same and the
    opposite side.
    """
    common = own - same if correlation > 0 else own + opposite
    independent = (1.0 - abs(correlation)) * (own**2 + opposite**2)
    return math.sqrt(abs(correlation) * common**2 + independent)


def _sigmoid(value: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * value))
