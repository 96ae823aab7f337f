"""Sparse telemetry, and its usual values by time of day or week, for anomaly detection."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints


class MeasuredSteps:
    """``(steps, workers, metrics)`` in which only rows with a value take memory.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import MeasuredSteps
    >>> past = MeasuredSteps(metrics=1)
    >>> past.add(0, np.array([[50.0], [np.nan]]))  # of two workers
    >>> past.add(2, np.array([[51.0], [60.0], [70.0]]))  # and of one more
    >>> past.shape, len(past)
    ((3, 3, 1), 4)
    >>> past.table(0, 2)[..., 0]
    array([[50., nan],
           [nan, nan],
           [51., 60.]])
    """

    TABLE_BYTES: ClassVar = 1 << 24
    """Largest table of a block of workers, unless that of a single worker is larger."""

    def __init__(self, metrics: int) -> None:
        self._metrics = metrics
        self._parts: list[tuple[int, NDArray[np.intp], Floats]] = []
        self._steps = self._workers = 0

    @classmethod
    def of(cls, table: Floats) -> "MeasuredSteps":
        """Convert a table ``(steps, workers, metrics)`` with NaN for missing values."""
        found = cls(table.shape[2])
        for step, values in enumerate(table):
            found.add(step, values)
        return found

    def add(self, step: int, values: Floats) -> None:
        """Add ``(workers, metrics)`` of a later step; workers may be added, never removed."""
        rows = np.flatnonzero(np.isfinite(values).any(axis=1))
        if len(rows):
            self._parts.append((step, rows, values[rows]))
        self._steps = step + 1
        self._workers = max(self._workers, len(values))

    def __len__(self) -> int:
        return sum(len(rows) for _, rows, _ in self._parts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps from the first to the last, workers and metrics."""
        return self._steps, self._workers, self._metrics

    def table(self, first: int, end: int) -> Floats:
        """Return ``(steps, end - first, metrics)`` of some workers, NaN for missing values."""
        table = np.full((self._steps, end - first, self._metrics), np.nan)
        order, starts = self._by_worker
        step, worker, values = self._all
        own = order[starts[first] : starts[end]]
        table[step[own], worker[own] - first] = values[own]
        return table

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of workers whose table is at most ``TABLE_BYTES``."""
        at_once = max(1, self.TABLE_BYTES // max(1, 8 * self._steps * self._metrics))
        for first in range(0, self._workers, at_once):
            yield first, min(first + at_once, self._workers)

    @cached_property
    def _all(self) -> tuple[Ints, Ints, Floats]:
        if not self._parts:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, np.zeros((0, self._metrics))
        steps = np.repeat([step for step, _, _ in self._parts], [len(r) for _, r, _ in self._parts])
        workers = np.concatenate([rows for _, rows, _ in self._parts])
        values = np.concatenate([values for _, _, values in self._parts])
        return steps.astype(np.int64), workers.astype(np.int64), values

    @cached_property
    def _by_worker(self) -> tuple[Ints, Ints]:
        """Return the rows in the order of their workers, and the start of each worker's rows."""
        _, worker, _ = self._all
        order: Ints = np.argsort(worker, kind="stable").astype(np.int64)
        starts = np.searchsorted(worker[order], np.arange(self._workers + 1))
        return order, starts.astype(np.int64)


_OWN_STEPS = 24
"""Least steps with a value for a worker's own level, spread and profile."""

_LEAST_SPREAD = 1e-6
"""A spread below this share of the level counts as rounding error."""

_FAR = 10.0
"""Values further from the median, in median deviations, are clipped for the profile."""


@dataclass(frozen=True)
class SeasonalProfiles:
    """Level, spread and one profile per season of every worker's metrics.

    A profile is the mean by phase of the seasonal part of robust STL (Cleveland et al., "STL",
    Journal of Official Statistics 6, 1990), or of MSTL with several seasons (Bandara et al.,
    "MSTL", arXiv 2107.13462). The spread is 1.4826 times the median absolute residual (Rousseeuw
    and Croux, "Alternatives to the Median Absolute Deviation", JASA 88, 1993), or the standard
    deviation, for a metric that is constant most of the time.

    Attributes
    ----------
    seasons_s : tuple of float
        Seasons that were seen more than twice, shortest first, seconds.
    level, spread : (workers + 1, metrics) float64
        The last row is the median of the others, for unknown workers.
    profiles : tuple of (phases, workers + 1, metrics) float64
        One per season, flat without enough data; seasons begin at the Unix epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import SeasonalProfiles
    >>> hour_s, midnight_ns = 3600.0, 1_700_006_400 * 10**9
    >>> hours = np.arange(10 * 24)
    >>> celsius = 60 + 5 * np.sin(2 * np.pi * hours / 24)  # warmest at six in the morning
    >>> past = celsius[:, None, None]  # (steps, workers, metrics)
    >>> profiles = SeasonalProfiles.learn(past, midnight_ns, hour_s, seasons_s=[24 * hour_s])
    >>> six_ns = midnight_ns + round(6 * hour_s) * 10**9
    >>> profiles.usual(six_ns).round().tolist()  # of the worker, and of one that is not known
    [[65.0], [65.0]]
    """

    seasons_s: tuple[float, ...]
    level: Floats
    spread: Floats
    profiles: tuple[Floats, ...]

    @classmethod
    def learn(
        cls,
        past: Floats | MeasuredSteps,
        start_ns: int,
        step_s: float,
        seasons_s: Sequence[float],
    ) -> "SeasonalProfiles":
        """Learn from ``(steps, workers, metrics)``, NaN for missing values.

        Works on blocks of workers, so memory grows with the number of values. The first row is of
        ``start_ns``; ``step_s`` is the time between rows, ``seasons_s`` the lengths of the seasons.
        """
        steps = past if isinstance(past, MeasuredSteps) else MeasuredSteps.of(past)
        count, workers, metrics = steps.shape
        phases = {season_s: round(season_s / step_s) for season_s in sorted(set(seasons_s))}
        phases = {season_s: n for season_s, n in phases.items() if 2 <= n < count / 2}
        times_ns = start_ns + np.arange(count) * round(step_s * SECOND_NS)
        at = [_phase(times_ns, s, n).round().astype(int) % n for s, n in phases.items()]
        own = np.zeros((workers, metrics), dtype=np.bool_)
        means = [np.full((n, workers, metrics), np.nan) for n in phases.values()]
        level, deviation, overall = (np.full((workers, metrics), np.nan) for _ in range(3))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # medians without values are NaN
            for first, end in steps.blocks():
                table = steps.table(first, end)
                own[first:end] = np.isfinite(table).sum(axis=0) >= _OWN_STEPS
                parts = _seasonal_parts(table, own[first:end], list(phases.values()))
                for mean, part, place in zip(means, parts, at, strict=True):
                    for phase in range(len(mean)):
                        mean[phase, first:end] = np.nanmean(part[place == phase], axis=0)
            profiles = [np.nan_to_num(_with_pooled(mean, own)) for mean in means]

            def rest(first: int, end: int) -> Floats:
                left = steps.table(first, end)
                for profile, place in zip(profiles, at, strict=True):
                    left -= profile[place, first:end]
                return left

            for first, end in steps.blocks():
                level[first:end] = np.nanmedian(rest(first, end), axis=0)
            pooled = _with_pooled(level, own)
            least = _LEAST_SPREAD * np.abs(pooled) + np.finfo(float).tiny
            for first, end in steps.blocks():
                off = rest(first, end) - pooled[first:end]
                deviation[first:end] = 1.4826 * np.nanmedian(np.abs(off), axis=0)
                overall[first:end] = np.nanstd(off, axis=0)
            spread = _with_pooled(np.where(deviation > least[:-1], deviation, overall), own)
        return cls(tuple(phases), pooled, np.maximum(spread, least), tuple(profiles))

    def usual(self, now_ns: int) -> Floats:
        """Return ``(workers + 1, metrics)`` usual values at this time, NaN where unknown."""
        usual = self.level
        for profile, season_s in zip(self.profiles, self.seasons_s, strict=True):
            phase = float(_phase(now_ns, season_s, len(profile)))
            before, share = int(phase) % len(profile), phase % 1.0
            after = (before + 1) % len(profile)
            usual = usual + (1 - share) * profile[before] + share * profile[after]
        return usual

    def spreads_off(self, measured: Floats, rows: Sequence[int], now_ns: int) -> Floats:
        """Return ``(workers, metrics)`` spreads above usual; -1 is the row of unknown workers."""
        with np.errstate(over="ignore", invalid="ignore"):
            off: Floats = (measured - self.usual(now_ns)[rows]) / self.spread[rows]
        return off


def _phase(times_ns: Any, season_s: float, steps: int) -> NDArray[np.float64]:
    """Return how many steps of the season have passed, in [0, steps)."""
    season_ns = round(season_s * SECOND_NS)
    return np.asarray(times_ns % season_ns / season_ns * steps)


def _seasonal_parts(past: Floats, own: NDArray[np.bool_], phases: Sequence[int]) -> list[Floats]:
    """Return the seasonal part of ``(steps, workers, metrics)``, one array per season."""
    parts = [np.full(past.shape, np.nan) for _ in phases]
    if parts:
        middle = np.nanmedian(past, axis=0)
        far = _FAR * np.nanmedian(np.abs(past - middle), axis=0)
        near = np.clip(past, middle - far, middle + far)
        for worker, metric in np.argwhere(own).tolist():
            seasonal = _decompose(near[:, worker, metric], phases)
            for part, column in zip(parts, seasonal.T, strict=True):
                part[:, worker, metric] = column
    return parts


def _decompose(values: Floats, phases: Sequence[int]) -> Floats:
    """Return ``(steps, seasons)``; gaps are interpolated linearly.

    The window of the seasonal smoother is unlimited, so there is one profile for all time. The
    other loess curves are evaluated every tenth of a season, as in the STL paper.
    """
    from statsmodels.tsa.seasonal import MSTL

    steps = np.arange(len(values))
    seen = np.isfinite(values)
    jump = max(1, phases[0] // 10)
    settings: dict[str, Any] = {
        "seasonal_deg": 0,
        "robust": True,
        "trend_jump": jump,
        "low_pass_jump": jump,
        "inner_iter": 1,
        "outer_iter": 5,
    }
    decomposed = MSTL(
        np.interp(steps, steps[seen], values[seen]),
        periods=tuple(phases),
        windows=tuple(10 * len(values) + 1 for _ in phases),
        stl_kwargs=settings,
    ).fit()
    seasonal: Floats = decomposed.seasonal.reshape(len(values), len(phases))
    return seasonal


def _with_pooled(values: Floats, own: NDArray[np.bool_]) -> Floats:
    """Append a row with the median over workers, and use it for workers without own values.

    ``(..., workers, metrics)`` becomes ``(..., workers + 1, metrics)``. If no worker has own
    values, the median is over all values.
    """
    theirs = np.where(own | ~own.any(axis=0), values, np.nan)
    pooled = np.nanmedian(theirs, axis=-2, keepdims=True)
    return np.concatenate([np.where(own, values, pooled), pooled], axis=-2)
