"""The values of all declared metrics, written by the intake and read by views."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints, frozen, samples_in
from torchloom_core.interface.needs import PolicyNeed, windows_s
from torchloom_core.live.fleet.newest import Newest
from torchloom_core.live.fleet.past import Past


class Ring:
    """The last ``columns`` values of one metric for every worker.

    Stored as ``(columns + room, workers)``, so that any window is one contiguous slice, transposed
    to ``(workers, samples)``; once the room is used, the last columns move to the start. A metric
    that no worker has reported takes no memory.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._room = 1 + columns // 4
        self._store: Floats | None = None
        self._workers = 0
        self._end = columns

    def extend(self, values: Floats) -> None:
        """Add the columns of several ticks: ``(ticks, n)`` values of the first workers."""
        last = values[-self.columns :]
        if self._store is None:
            if np.isnan(last).all():
                return
            self._store = np.full((self.columns + self._room, self._workers), np.nan)
        if self._end + len(last) > len(self._store):
            self._move_to_start(self.columns - len(last))
        self._store[self._end : self._end + len(last), : last.shape[1]] = last
        self._end += len(last)

    def _move_to_start(self, columns: int) -> None:
        """Move the last columns to the start, in pieces that do not overlap: without a copy."""
        if self._store is not None:
            by = self._end - columns
            for at in range(0, columns, by):
                until = min(at + by, columns)
                self._store[at:until] = self._store[at + by : until + by]
        self._end = columns

    def window(self, samples: int) -> Floats:
        """Return the last ``samples`` columns, oldest first, as ``(workers, samples)``."""
        if self._store is None:
            return np.broadcast_to(np.float64(np.nan), (self._workers, samples))
        return frozen(self._store[self._end - samples : self._end].T)

    def copy(self, columns: int) -> "Ring":
        """Return an independent copy with the last ``columns``."""
        twin = Ring(columns)
        twin._workers = self._workers
        if self._store is not None:
            twin._store = self._store[self._end - columns : self._end].copy()
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's values for its next incarnation."""
        if self._store is not None:
            self._store[:, row] = np.nan

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows; the new ones are NaN."""
        more, self._workers = workers - self._workers, workers
        if self._store is not None:
            self._store = np.pad(self._store, ((0, 0), (0, more)), constant_values=np.nan)


class Rings:
    """A ring, the newest value and, if needed, the change times of every metric.

    Reads are at one moment, ``now_ns``, for the first ``workers`` rows.

    Parameters
    ----------
    columns : mapping of str to int
        Ticks to store of each metric.
    with_past : collection of str
        Metrics whose change times are stored.

    Attributes
    ----------
    number_of : dict of str to int
        Metric to its index.
    """

    def __init__(
        self,
        columns: Mapping[str, int],
        with_past: Collection[str],
        *,
        tick_s: float,
        stale_after_s: float,
    ) -> None:
        # Metrics with a past come first, so they are a slice of all.
        names = sorted(columns, key=lambda metric: (metric not in with_past, metric))
        self.number_of = {metric: number for number, metric in enumerate(names)}
        self._rings = [Ring(columns[metric]) for metric in names]
        self._newest = Newest(len(names))
        self._past = Past(sum(metric in with_past for metric in names))
        self._coming: Floats = np.full((len(names), 0), np.nan)
        self._tick_s = tick_s
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self.now_ns = 0
        self.workers = 0

    def put(
        self, metrics: NDArray[np.intp], rows: NDArray[np.intp], values: Floats, ts_ns: Ints
    ) -> None:
        """Store ``(metrics, n)`` values that arrived at ``(n,)`` for the next column.

        For repeated rows the last value stays, and is the newest unless it is NaN.
        """
        # Column by column, as those of a large fleet do not fit in the cache together.
        for metric, column in zip(metrics.tolist(), values, strict=True):
            self._coming[metric, rows] = column
            self._newest.put(metric, rows, column, ts_ns)

    def close_column(self) -> None:
        """End the tick: the stored values become the newest column, with NaN for missing ones."""
        for ring, column in zip(self._rings, self._coming, strict=True):
            ring.extend(column[None])
        self._coming.fill(np.nan)
        self._past.note(self._newest)

    def extend(self, values: Floats, ts_ns: Ints) -> None:
        """Add the columns of several ticks, as if each was put and closed.

        Parameters
        ----------
        values : (metrics, ticks, n) float64
            Of all metrics and the first workers.
        ts_ns : (ticks,) int64
            The end of each tick.
        """
        for ring, columns in zip(self._rings, values, strict=True):
            ring.extend(columns)
        known = ~np.isnan(values)
        came = known.any(axis=(0, 2))
        if not came.any():
            return
        if not came.all():
            # Ticks without values leave the newest values unchanged.
            values, known, ts_ns = values[:, came], known[:, came], ts_ns[came]
        self._newest.extend(values, known, ts_ns)
        with_past = len(self._past)
        if len(ts_ns) == 1:  # takes half the time
            self._past.note(self._newest)
        elif with_past:
            self._past.extend(values[:with_past], known[:with_past], ts_ns)

    def forget(self, row: int) -> None:
        """Clear one worker's values for its next incarnation."""
        for ring in self._rings:
            ring.forget(row)
        self._coming[:, row] = np.nan
        self._newest.forget(row)
        self._past.forget(row)

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows, if there is less."""
        more = workers - self._coming.shape[1]
        if more <= 0:
            return
        for ring in self._rings:
            ring.grow(workers)
        self._coming = np.pad(self._coming, ((0, 0), (0, more)), constant_values=np.nan)
        self._newest.grow(workers)
        self._past.grow(workers)

    def _number(self, metric: str) -> int:
        if metric not in self.number_of:
            raise KeyError(f"{metric}: need a Need of it in needs")
        return self.number_of[metric]

    def latest(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, NaN where missing or stale."""
        number = self._number(metric)
        fresh = self._newest.ts_ns[number, : self.workers] >= self.now_ns - self._stale_ns
        return frozen(np.where(fresh, self._newest.value[number, : self.workers], np.nan))

    def window(self, metric: str, seconds: float) -> Floats:
        """Return ``(workers, samples)``, oldest first, NaN where missing."""
        ring = self._rings[self._number(metric)]
        samples = samples_in(seconds, self._tick_s)
        if samples > ring.columns:
            raise KeyError(
                f"{metric}: need a window of at most {ring.columns * self._tick_s:g} s, as "
                f"declared, was {seconds:g} s"
            )
        return ring.window(samples)[: self.workers]

    def age_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the last valid sample, inf where there is none."""
        seen = self._newest.ts_ns[self._number(metric), : self.workers]
        age_s = (self.now_ns - seen) / SECOND_NS
        return frozen(np.where(seen > 0, age_s, np.inf))

    def last_known(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, however old; NaN where there is none."""
        return frozen(self._newest.value[self._number(metric), : self.workers].copy())

    def moved_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value first changed, NaN where it never did."""
        return self._since_s(self._past.moved_ns[self._number_in_past(metric)])

    def rested_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds without a change before the first, NaN without one."""
        number = self._number_in_past(metric)
        began_s, moved_s = (
            self._since_s(stamps[number]) for stamps in (self._past.began_ns, self._past.moved_ns)
        )
        return frozen(began_s - moved_s)

    def changed_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value last changed, NaN where it never did."""
        return self._since_s(self._past.changed_ns[self._number_in_past(metric)])

    def _number_in_past(self, metric: str) -> int:
        number = self._number(metric)
        if number >= len(self._past):
            raise KeyError(f"{metric}: need it in a NeedPast in needs")
        return number

    def _since_s(self, stamps: Ints) -> Floats:
        ns = stamps[: self.workers]
        return frozen(np.where(ns > 0, (self.now_ns - ns) / SECOND_NS, np.nan))

    def copy(self, needs: Iterable[PolicyNeed]) -> "Rings":
        """Return an independent copy with the metrics that one predictor needs."""
        wanted = windows_s(needs)
        names = [metric for metric in self.number_of if metric in wanted]
        twin = Rings({}, (), tick_s=self._tick_s, stale_after_s=self._stale_ns / SECOND_NS)
        numbers = np.array([self.number_of[metric] for metric in names], dtype=np.intp)
        twin.number_of = {metric: number for number, metric in enumerate(names)}
        twin._rings = [
            self._rings[self.number_of[metric]].copy(samples_in(wanted[metric], self._tick_s))
            for metric in names
        ]
        twin._newest = self._newest.copy(numbers)
        twin._past = self._past.copy(numbers[numbers < len(self._past)])
        twin.now_ns, twin.workers = self.now_ns, self.workers
        return twin
