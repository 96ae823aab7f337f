"""Intervals of 95 %: exact ones of counts, and bootstraps that keep together what is alike."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.learning.forecast_score import Interval
from torchloom_core.plugin.arrays import Floats, Ints

RESAMPLES = 2_000

_DAY_S = 86_400.0
_LOW, _HIGH = 0.025, 0.975
_MIN_BLOCKS = 10
_MAX_COMPONENT_BLOCKS = 1_000
_AT_ONCE = 250


def exact_rate(count: int, exposure: float) -> Interval:
    """Return the rate of a Poisson process, with its exact interval.

    Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28, 1936. Without
    exposure it is 0, and nothing is known of it.
    """
    from statsmodels.stats.rates import confint_poisson

    if exposure <= 0:
        return Interval(value=0.0, method="nothing was watched")
    low, high = confint_poisson(count, exposure, method="exact-c")
    return Interval(
        value=count / exposure,
        low=float(low),
        high=float(high),
        method="exact, of a Poisson count",
    )


def exact_share(count: int, other: int) -> Interval:
    """Return ``count / (count + other)`` of two Poisson counts, with its exact interval.

    Given their sum, one of two Poisson counts is binomial: Clopper and Pearson, "The use of
    confidence or fiducial limits", Biometrika 26, 1934. Of nothing it is 0, without an interval.
    """
    from scipy.stats import beta

    if count + other == 0:
        return Interval(value=0.0, method="nothing to count")
    low = beta.ppf(_LOW, count, other + 1) if count else 0.0
    high = beta.ppf(_HIGH, count + 1, other) if other else 1.0
    return Interval(
        value=count / (count + other),
        low=float(low),
        high=float(high),
        method="exact, of two Poisson counts",
    )


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which moments and components are resampled together.

    Attributes
    ----------
    of_time : (times,) int64
    of_component : (components,) int64
        A sample's block is the sum of the two; one of them is all zeros.
    count : int
        How many blocks there are.
    what : str
        For people: what one block is.
    """

    of_time: Ints
    of_component: Ints
    count: int
    what: str

    def weights(self, resamples: int, seed: int) -> Floats:
        """Return ``(resamples, blocks)``: how often each block was drawn, the same for a seed."""
        random = np.random.default_rng([seed, self.count])
        drawn = random.integers(0, self.count, (resamples, self.count))
        drawn += np.arange(resamples)[:, None] * self.count
        counts = np.bincount(drawn.ravel(), minlength=resamples * self.count)
        return counts.reshape(resamples, self.count).astype(np.float64)


def blocks_of(times_ns: Ints, components: int, horizon_s: float) -> Blocks:
    """Return blocks of a day or of the horizon, whichever is longer.

    Outcomes within a horizon of one another are of the same failures. Where the time is too
    short for ten such blocks, those of one component are kept together instead; where there are
    too few components as well, the time is cut into ten.
    """
    length_s = max(_DAY_S, horizon_s)
    since_s = (times_ns - times_ns[0]) / SECOND_NS
    of_time = (since_s // length_s).astype(np.int64)
    nowhere: Ints = np.zeros(components, dtype=np.int64)
    if of_time[-1] + 1 < _MIN_BLOCKS and components >= _MIN_BLOCKS:
        count = min(components, _MAX_COMPONENT_BLOCKS)
        of_component: Ints = np.arange(components, dtype=np.int64) % count
        what = "components" if count == components else "groups of components"
        return Blocks(np.zeros(len(times_ns), dtype=np.int64), of_component, count, what)
    if of_time[-1] + 1 < _MIN_BLOCKS:
        length_s = float(since_s[-1]) / _MIN_BLOCKS
        of_time = np.arange(len(times_ns), dtype=np.int64) * _MIN_BLOCKS // len(times_ns)
    return Blocks(of_time, nowhere, int(of_time[-1]) + 1, f"blocks of {length_s / _DAY_S:.3g} d")


def bootstrap(
    value: float, statistic: Callable[[Floats], Floats], weights: Floats, what: str
) -> Interval:
    """Return the percentile interval of a statistic of block weights.

    Parameters
    ----------
    statistic : callable
        ``(resamples, blocks)`` weights to ``(resamples,)`` values; NaN where there is none.
    weights : (resamples, blocks) float64
    """
    parts = np.array_split(weights, max(1, len(weights) // _AT_ONCE))
    values = np.concatenate([statistic(part) for part in parts])
    values = values[~np.isnan(values)]
    if not len(values):
        return Interval(value=value, method="no resample with a failure in it")
    low, high = np.quantile(values, (_LOW, _HIGH))
    return Interval(
        value=value,
        low=float(low),
        high=float(high),
        method=f"bootstrap over {weights.shape[1]} {what}, {len(weights)} resamples",
    )


class AveragePrecision:
    """The average precision of one score under any block weights.

    AP = sum over thresholds of (recall gained) x precision, as ``sklearn.metrics`` has it; only
    thresholds at which a positive is gained add to it, so only their counts are kept.

    Parameters
    ----------
    score : (samples,) float64
    positive : (samples,) bool
    block : (samples,) int64
    blocks : int
        How many blocks there are.
    """

    def __init__(self, score: Floats, positive: Ints, block: Ints, blocks: int) -> None:
        levels = np.unique(-score[positive])
        level = np.searchsorted(levels, -score)
        counted = level < len(levels)
        cell = level * blocks + block
        size = len(levels) * blocks
        shape = (len(levels), blocks)
        self._all = np.bincount(cell[counted], minlength=size).reshape(shape).T.astype(float)
        self._hits = np.bincount(cell[positive], minlength=size).reshape(shape).T.astype(float)

    @property
    def value(self) -> float:
        """With every block once; 0 without a positive."""
        return float(np.nan_to_num(self(np.ones((1, len(self._all))))[0]))

    def __call__(self, weights: Floats) -> Floats:
        """Return ``(resamples,)`` values, NaN where a resample has no positive."""
        gained = weights @ self._hits  # (resamples, levels)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.cumsum(gained, axis=1) / np.cumsum(weights @ self._all, axis=1)
            total = gained.sum(axis=1)
            values: Floats = np.nansum(gained * precision, axis=1) / total
        return np.where(total > 0, values, np.nan)
