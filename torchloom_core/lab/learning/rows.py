"""Training rows: sample them from examples, and scale, average and fill their columns."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.api import Example
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.interface.needs import labels_read
from torchloom_core.lab.learning.features import Features

_ALWAYS = -1.0
"""A draw below any threshold."""

_COMPARED = 256
"""Rows of a first comparison of two columns; only equal ones are compared completely."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows: one per labelled worker and moment, in time order.

    Attributes
    ----------
    features : (rows, features) float64
        NaN where unknown.
    failed : (rows,) bool
        Whether the worker failed within the horizon.
    at_ns : (rows,) int64
        Time of the example, ns since the epoch.
    share : float
        Share of the healthy rows in the sample; all positive rows are in it.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Rows
    >>> hours_ns = np.arange(10) * 3600 * 10**9
    >>> rows = Rows(np.arange(10.0)[:, None], np.arange(10) > 7, hours_ns, share=1.0)
    >>> learned, held_out = rows.split(later=0.4, embargo_s=7200.0)
    >>> learned.features[:, 0], held_out.features[:, 0]
    (array([0., 1., 2., 3.]), array([6., 7., 8., 9.]))
    >>> learned.has_both_outcomes, held_out.has_both_outcomes
    (False, True)
    >>> columns = np.column_stack([hours_ns, np.zeros(10), hours_ns]).astype(float)
    >>> Rows(columns, rows.failed, hours_ns, share=1.0).informative
    array([0])
    """

    features: Floats
    failed: NDArray[np.bool_]
    at_ns: Ints
    share: float

    def split(self, later: float, embargo_s: float) -> tuple["Rows", "Rows"]:
        """Return the rows before and in the last ``later`` share of the time.

        Between the two lie at least ``embargo_s``, so that no outcome of the first is decided
        in the second.
        """
        if not len(self.at_ns):
            return self, self
        start_ns, end_ns = int(self.at_ns[0]), int(self.at_ns[-1])
        cut_ns = end_ns - round(later * (end_ns - start_ns))
        return (
            self._where(self.at_ns < cut_ns - round(embargo_s * SECOND_NS)),
            self._where(self.at_ns >= cut_ns),
        )

    @property
    def has_both_outcomes(self) -> bool:
        """Whether there are positive and negative rows."""
        return bool(self.failed.any() and not self.failed.all())

    @cached_property
    def informative(self) -> NDArray[np.intp]:
        """``(columns,)`` indices of the informative columns; the first one if there is none.

        A column is not if it is constant, or equals an earlier column in every row: the mean over
        a span of one sample equals the newest value.
        """
        features, first = self.features, self.features[0]
        same = (features == first) | (np.isnan(features) & np.isnan(first))
        step = max(1, len(features) // _COMPARED)
        alike: dict[bytes, list[int]] = {}
        for place in np.flatnonzero(~same.all(axis=0)).tolist():
            column = features[:, place]
            some = column[::step] + 0.0  # so that -0.0 is 0.0
            others = alike.setdefault(some.tobytes(), [])
            if not any(np.array_equal(column, features[:, at], equal_nan=True) for at in others):
                others.append(place)
        return np.array(sorted(chain.from_iterable(alike.values())) or [0], dtype=np.intp)

    @cached_property
    def narrowed(self) -> "Rows":
        """The same rows, with only the ``informative`` columns."""
        return replace(self, features=self.features[:, self.informative])

    @cached_property
    def usual(self) -> Floats:
        """``(features,)`` medians over healthy rows, NaN where most are unknown."""
        healthy = self.features[~self.failed]
        medians = np.full(healthy.shape[1], np.nan)
        known = np.count_nonzero(~np.isnan(healthy), axis=0) > len(healthy) / 2
        if known.any():
            medians[known] = np.nanmedian(healthy[:, known], axis=0)
        return medians

    def _where(self, wanted: NDArray[np.bool_]) -> "Rows":
        return Rows(
            self.features[wanted], self.failed[wanted], self.at_ns[wanted], share=self.share
        )


_AS_MANY_MORE = 4
"""A sample is thinned after every fourth of its size, which limits its memory.

The resulting rows do not depend on how often.
"""


class RowSample:
    """Samples rows from a stream: all positive rows, and an unbiased sample of the healthy ones.

    Each healthy row draws a number by ``seed``, and the ``max_healthy`` with the smallest stay
    (bottom-k sampling, Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007):
    all have the same chance, and memory is bounded.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import RowSample
    >>> sample = RowSample(max_healthy=100, seed=0)
    >>> for second in range(50):
    ...     features = np.full((10, 2), float(second))  # (workers, features)
    ...     outcome = np.array([1.0, np.nan] + [0.0] * 8)
    ...     sample.add(second * 10**9, features, outcome)
    >>> rows = sample.rows("mine")
    >>> rows.features.shape, int(rows.failed.sum()), rows.share
    ((150, 2), 50, 0.25)
    """

    def __init__(self, max_healthy: int, seed: int) -> None:
        self._max_healthy = max_healthy
        self._random = np.random.default_rng(seed)
        self._bar = 1.0
        self._healthy_seen = 0
        self._parts: list[tuple[Floats, Floats, NDArray[np.bool_], Ints]] = []
        self._rows_since_thinned = 0

    def add(self, at_ns: int, features: Floats, outcome: Floats) -> None:
        """Add an example's ``(workers, features)``; rows whose outcome is NaN are left out."""
        judged = np.flatnonzero((outcome == 0.0) | (outcome == 1.0))
        failed = outcome[judged] == 1.0
        draws = self._random.random(len(judged))
        draws[failed] = _ALWAYS
        self._healthy_seen += int(np.count_nonzero(~failed))
        below = draws < self._bar
        chosen = judged[below]
        stamps: Ints = np.full(len(chosen), at_ns, dtype=np.int64)
        self._parts.append((draws[below], features[chosen], failed[below], stamps))
        self._rows_since_thinned += len(chosen)
        if self._rows_since_thinned > self._max_healthy / _AS_MANY_MORE:
            self._thin()

    def _thin(self) -> None:
        """Lower the bar so that at most ``max_healthy`` healthy rows are below it."""
        if not self._rows_since_thinned:
            return
        draws, features, failed, at_ns = map(np.concatenate, zip(*self._parts, strict=True))
        healthy = draws[~failed]
        if len(healthy) > self._max_healthy:
            self._bar = float(np.partition(healthy, self._max_healthy)[self._max_healthy])
            stay = draws < self._bar
            draws, features, failed, at_ns = draws[stay], features[stay], failed[stay], at_ns[stay]
        self._parts = [(draws, features, failed, at_ns)]
        self._rows_since_thinned = 0

    def rows(self, predictor: str) -> Rows:
        """Return the sample; PluginError if all rows have the same outcome."""
        self._thin()
        failures = int(self._parts[0][2].sum()) if self._parts else 0
        if not failures:
            raise PluginError(
                f"{predictor}: need a failure to learn from, was none in "
                f"{self._healthy_seen} labelled moments of workers"
            )
        if not self._healthy_seen:
            raise PluginError(
                f"{predictor}: need healthy workers to learn from, was none besides {failures} "
                f"positive moments"
            )
        _, features, failed, at_ns = self._parts[0]
        healthy = len(failed) - failures
        return Rows(features, failed, at_ns, share=healthy / self._healthy_seen)

    def healthy(self, predictor: str) -> Floats:
        """Return ``(rows, features)`` of the healthy rows, in time order; PluginError if none."""
        self._thin()
        if not self._healthy_seen:
            raise PluginError(f"{predictor}: need healthy workers to learn from, was none")
        _, features, failed, _ = self._parts[0]
        return features[~failed]


class RowGathering:
    """Computes the features of the examples, and samples their rows.

    Workers that left or are gone are left out; features of seasons that recur too rarely are NaN.
    ``max_healthy`` and ``seed`` are those of :class:`RowSample`.
    """

    def __init__(self, features: Features, max_healthy: int, seed: int) -> None:
        self._features = features
        self._labels = labels_read(features.needs)
        self._sample = RowSample(max_healthy, seed)

    def add(self, example: Example) -> None:
        """Add one example."""
        view = example.view.with_labels(self._labels)  # as a predictor with these features gets it
        outcome = np.where(view.is_in("left", "gone"), np.nan, example.outcome)
        self._sample.add(view.now_ns, self._features.of(view), outcome)

    def rows(self, predictor: str) -> Rows:
        """Return the rows, or raise a PluginError as :meth:`RowSample.rows`."""
        rows = self._sample.rows(predictor)
        recurred = self._features.recurred((rows.at_ns[-1] - rows.at_ns[0]) / SECOND_NS)
        if recurred.all():
            return rows
        return replace(rows, features=np.where(recurred, rows.features, np.nan))


_LEAST_SPREAD = 1e-6
"""A spread below this share of the median counts as rounding error."""


@dataclass(frozen=True)
class Scale:
    """Median and spread of each column, ``(columns,)``, NaN for a column without values.

    The spread is the interquartile range over 1.349, the standard deviation of a Gaussian; or the
    standard deviation, for a column that is constant most of the time.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Scale
    >>> scale = Scale.of(np.array([[1.0], [2.0], [3.0], [np.nan]]))
    >>> scale.spreads_off(np.array([[2.0 + 3 / 1.349], [np.nan]]))
    array([[ 3.],
           [nan]])
    """

    middle: Floats
    spread: Floats

    @classmethod
    def of(cls, rows: Floats) -> "Scale":
        """Compute the scale of ``(rows, columns)``."""
        middle, spread = np.full((2, rows.shape[1]), np.nan)
        known = np.isfinite(rows).any(axis=0)
        if known.any():
            with np.errstate(over="ignore", invalid="ignore"):
                low, middle[known], high = np.nanquantile(rows[:, known], [0.25, 0.5, 0.75], axis=0)
                overall = np.nanstd(rows[:, known], axis=0)
            quartiles = (high - low) / 1.349
            spread[known] = np.where(
                quartiles > _LEAST_SPREAD * np.abs(middle[known]), quartiles, overall
            )
        least = _LEAST_SPREAD * np.abs(middle) + np.finfo(float).tiny
        return cls(middle, np.maximum(spread, least))

    def spreads_off(self, values: Floats) -> Floats:
        """Return the distance of ``(..., columns)`` from the median in spreads, NaN if unknown."""
        with np.errstate(over="ignore", invalid="ignore"):
            off: Floats = (values - self.middle) / self.spread
        return off


def step_means(window: Floats, steps: int) -> Floats:
    """Return the mean over each of ``steps`` equal parts of a window, ``(workers, steps)``.

    ``window`` is ``(workers, samples)``, oldest first; values that are not finite are left out.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import step_means
    >>> step_means(np.array([[1.0, 3.0, np.nan, np.nan, 5.0, np.nan]]), 3)
    array([[ 2., nan,  5.]])
    """
    step_of = np.arange(window.shape[1]) * steps // window.shape[1]
    belongs = (step_of[:, None] == np.arange(steps)).astype(float)
    seen = np.isfinite(window)
    with np.errstate(over="ignore", invalid="ignore"):
        means = (np.where(seen, window, 0.0) @ belongs) / (seen @ belongs)
    return np.where(np.isfinite(means), means, np.nan)


def fill_unknown_columns(features: Floats) -> Floats:
    """Return ``(rows, features)`` with 0 in columns that are all NaN: trees find no split there.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import fill_unknown_columns
    >>> fill_unknown_columns(np.array([[np.nan, 1.0], [np.nan, np.nan]]))
    array([[ 0.,  1.],
           [ 0., nan]])
    """
    unknown = np.isnan(features).all(axis=0)
    return np.where(unknown, 0.0, features) if unknown.any() else features
