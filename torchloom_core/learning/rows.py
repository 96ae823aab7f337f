"""The rows that a predictor keeps of the examples that pass, one a worker and moment."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import PluginError
from torchloom_core.learning.features import Features
from torchloom_core.plugin.api import Example
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.plugin.needs import labels_read

_ALWAYS = -1.0
"""A draw that is below any bar."""

_COMPARED = 256
"""Of so many rows, spread over all, two columns have to be alike to be compared in all."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What was kept of the examples: one row a judged worker and moment, in time order.

    Attributes
    ----------
    features : (rows, features) float64
        NaN where unknown.
    failed : (rows,) bool
        Whether the worker failed within the horizon.
    at_ns : (rows,) int64
        Time of the example, ns since the epoch.
    share : float
        How many of the rows that did not fail were kept; all that failed were.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import Rows
    >>> hours_ns = np.arange(10) * 3600 * 10**9
    >>> rows = Rows(np.arange(10.0)[:, None], np.arange(10) > 7, hours_ns, share=1.0)
    >>> learned, held_out = rows.split(later=0.4, embargo_s=7200.0)
    >>> learned.features[:, 0], held_out.features[:, 0]
    (array([0., 1., 2., 3.]), array([6., 7., 8., 9.]))
    >>> learned.tell_apart, held_out.tell_apart
    (False, True)
    >>> columns = np.column_stack([hours_ns, np.zeros(10), hours_ns]).astype(float)
    >>> Rows(columns, rows.failed, hours_ns, share=1.0).telling
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
    def tell_apart(self) -> bool:
        """Whether some failed and some did not."""
        return bool(self.failed.any() and not self.failed.all())

    @cached_property
    def telling(self) -> NDArray[np.intp]:
        """``(columns,)`` places of those that tell rows apart; the first one if none does.

        A column does not that is the same in all rows, or in each row what one before it is: the
        mean over the time of one sample is the newest value.
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
        """The same rows, with the columns alone that are ``telling``."""
        return replace(self, features=self.features[:, self.telling])

    @cached_property
    def usual(self) -> Floats:
        """``(features,)`` medians over those that did not fail, NaN where most are unknown."""
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
"""A sample is thinned whenever a fourth of it has come in addition: its memory stays near its size.

Which rows are left in the end is the same however often.
"""


class RowSample:
    """Keeps all rows of workers that failed, and a fair sample of the others, as they pass.

    Each of the others draws a number; those with the smallest stay (bottom-k sampling, Cohen
    and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007), so that each has the
    same chance however many come, and memory is bounded.

    Parameters
    ----------
    max_healthy : int
        How many rows that did not fail are kept.
    seed : int
        Of the draws.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import RowSample
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
        """Take an example's ``(workers, features)``; rows whose outcome is NaN are left out."""
        judged = np.flatnonzero((outcome == 0.0) | (outcome == 1.0))
        failed = outcome[judged] == 1.0
        draws = self._random.random(len(judged))
        draws[failed] = _ALWAYS
        self._healthy_seen += int(np.count_nonzero(~failed))
        below = draws < self._bar
        kept = judged[below]
        stamps: Ints = np.full(len(kept), at_ns, dtype=np.int64)
        self._parts.append((draws[below], features[kept], failed[below], stamps))
        self._rows_since_thinned += len(kept)
        if self._rows_since_thinned > self._max_healthy / _AS_MANY_MORE:
            self._thin()

    def _thin(self) -> None:
        """Lower the bar so that at most ``max_healthy`` rows that did not fail are below it."""
        if not self._rows_since_thinned:
            return
        draws, features, failed, at_ns = map(np.concatenate, zip(*self._parts, strict=True))
        healthy = draws[~failed]
        if len(healthy) > self._max_healthy:
            self._bar = float(np.partition(healthy, self._max_healthy)[self._max_healthy])
            kept = draws < self._bar
            draws, features, failed, at_ns = draws[kept], features[kept], failed[kept], at_ns[kept]
        self._parts = [(draws, features, failed, at_ns)]
        self._rows_since_thinned = 0

    def rows(self, predictor: str) -> Rows:
        """Return what was kept.

        Raises
        ------
        PluginError
            If no row failed, or all did.
        """
        self._thin()
        failures = int(self._parts[0][2].sum()) if self._parts else 0
        if not failures:
            raise PluginError(
                f"{predictor}: need a failure to learn from, was none in "
                f"{self._healthy_seen} moments of workers"
            )
        if not self._healthy_seen:
            raise PluginError(
                f"{predictor}: need a worker that did not fail to learn from, was none beside "
                f"{failures} that did"
            )
        _, features, failed, at_ns = self._parts[0]
        kept = len(failed) - failures
        return Rows(features, failed, at_ns, share=kept / self._healthy_seen)

    def healthy(self, predictor: str) -> Floats:
        """Return ``(rows, features)`` of those that did not fail, in time order.

        Raises
        ------
        PluginError
            If there is none.
        """
        self._thin()
        if not self._healthy_seen:
            raise PluginError(
                f"{predictor}: need a worker that did not fail to learn from, was none"
            )
        _, features, failed, _ = self._parts[0]
        return features[~failed]


class RowGathering:
    """Computes the features of the examples that pass, and keeps a sample of their rows.

    A worker that left or is gone at the time is nothing to learn from, nor is a season that has
    not recurred: in the rows it is unknown.

    Parameters
    ----------
    features : Features
        What is computed.
    max_healthy, seed
        As of :class:`RowSample`.
    """

    def __init__(self, features: Features, max_healthy: int, seed: int) -> None:
        self._features = features
        self._labels = labels_read(features.needs)
        self._sample = RowSample(max_healthy, seed)

    def add(self, example: Example) -> None:
        """Take one example."""
        view = example.view.with_labels(self._labels)  # as a predictor of these features sees it
        outcome = np.where(view.is_in("left", "gone"), np.nan, example.outcome)
        self._sample.add(view.now_ns, self._features.of(view), outcome)

    def rows(self, predictor: str) -> Rows:
        """Return what was kept, or raise a PluginError as :meth:`RowSample.rows`."""
        rows = self._sample.rows(predictor)
        recurred = self._features.recurred((rows.at_ns[-1] - rows.at_ns[0]) / SECOND_NS)
        if recurred.all():
            return rows
        return replace(rows, features=np.where(recurred, rows.features, np.nan))
