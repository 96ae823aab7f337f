"""The dashboard's table of workers: a row for each, with its newest values."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.live.dashboard.downsampling import Downsampled
from torchloom_core.live.dashboard.slow import OWN_S, WHOLE_S, Slow
from torchloom_core.live.fleet.incarnations import Incarnations
from torchloom_core.live.fleet.time_accounting import TimeAccount
from torchloom_core.wire.endings import INTENDED
from torchloom_core.wire.limits import MAX_WORKERS
from torchloom_core.wire.messages import Exit, Hello, Telemetry
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.status import WorkerStatus

STATES = (
    "unknown",
    "standby",
    "joining",
    "training",
    "paused",
    "draining",
    "left",
    "ended",
    "unreachable",
    "failed",
)
"""A worker's state by its byte; a later one is worse to overlook."""

MOST_METRICS, MOST_OF_ONE = 128, 64
"""Metrics that are stored, and metrics that one worker may add: none can take all columns."""

WAIT_S = "wait_s"
"""Time of a step in which a rank waits for others."""

_CODE = {name: code for code, name in enumerate(STATES)}
_OVER = tuple(_CODE[name] for name in ("left", "ended", "failed"))
_UNREACHABLE = _CODE["unreachable"]
_CACHED_HEADERS = 1000

Bytes = NDArray[np.uint8]


class Place(NamedTuple):
    """The placement of a worker."""

    worker: str
    group: str
    node: str
    rack: str
    role: str = TRAINER


class Board:
    """The state and the newest values of each worker, in columns; a row per worker as they came.

    ``version`` changes whenever one of ``places`` has. ``metrics`` are the columns of values, and
    ``leaves_out`` is whether there are more than are stored. ``strangers`` report and have no known
    hello. A worker that has not ended is unreachable after ``stale_after_s`` without a heartbeat.
    """

    def __init__(self, stale_after_s: float) -> None:
        self._stale_after_s = stale_after_s
        self.places: list[Place] = []
        self.row_of: dict[str, int] = {}
        self.metrics: list[str] = []
        self.leaves_out = False
        self.version = 0
        self.strangers: set[str] = set()
        self._columns: dict[str, int] = {}
        self._added: Counter[int] = Counter()
        self._columns_of: dict[tuple[str, ...], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        self._incarnation: list[int] = []
        self._incarnations = Incarnations()
        self._state: Bytes = np.zeros(0, dtype=np.uint8)
        self._step: Ints = np.zeros(0, dtype=np.int64)
        self._launch: dict[int, str] = {}
        self._job: Ints = np.zeros(0, dtype=np.int64)
        self._seen_s: Floats = np.zeros(0)
        self._progress_s: Floats = np.zeros(0)
        self._values: Floats = np.zeros((0, 0))
        self._low: Floats = np.zeros(0)
        self._high: Floats = np.zeros(0)
        self.series: dict[str, Downsampled] = {}
        self.time_account = TimeAccount(STATES)
        self.slow = Slow()

    def __len__(self) -> int:
        return len(self.places)

    # --- inputs ---

    def add(self, hello: Hello, now_s: float) -> None:
        """Add a worker or its next incarnation if it may follow; an incarnation keeps its place."""
        row = self.row_of.get(hello.worker, -1)
        if row >= 0 and not self._may_follow(row, hello.incarnation, now_s):
            return
        place = Place(hello.worker, hello.group, hello.node, hello.rack, hello.role)
        if row >= 0 and self._incarnation[row] == hello.incarnation:
            place = self.places[row]
        row = self._row(place, hello.incarnation)
        if row >= 0:
            self._state[row], self._seen_s[row] = _CODE[hello.state], now_s
            self._progress_s[row] = now_s
            if hello.launch != self._launch.get(row) and hello.resumes is not None:
                self._launch[row] = hello.launch
                self._job[row] += not hello.resumes

    def learn(self, status: Iterable[WorkerStatus], now_s: float) -> None:
        """Take workers from the Weaver's status: some started before the dashboard."""
        for one in status:
            place = Place(one.worker, one.group, one.node, one.rack, one.role)
            row = self._row(place, one.incarnation)
            if row < 0:
                continue
            state = one.state
            if state == "gone":
                state = "ended" if one.ending in INTENDED else "failed"
            self._state[row], self._step[row] = _CODE.get(state, 0), one.step
            self._seen_s[row] = now_s - (one.heartbeat_age_s or 0.0)
            self._progress_s[row] = now_s - (one.progress_age_s or 0.0)
            for name, value in one.metrics.items():
                column = self._column(name, row)
                if column >= 0:
                    self._values[row, column] = value

    def take(self, batch: Telemetry, now_s: float) -> None:
        """Take a worker's telemetry; an incarnation without a hello is added to ``strangers``."""
        row = self.row_of.get(batch.worker, -1)
        if row < 0 or self._incarnation[row] != batch.incarnation:
            is_new = row < 0 or self._may_follow(row, batch.incarnation, now_s)
            if is_new and len(self.strangers) < MAX_WORKERS:
                self.strangers.add(batch.worker)
            return
        self._seen_s[row], self._step[row] = now_s, batch.step
        self._state[row] = _CODE[batch.state]
        self._progress_s[row] = now_s - batch.progress_age_s
        if not batch.ts_ns or not batch.metrics:
            return
        columns, own = self._columns_of.get(batch.metrics) or self._place_header(batch.metrics, row)
        table = np.frombuffer(batch.values, dtype="<f8").reshape(-1, len(batch.metrics))[:, own]
        self._values[row, columns] = table[-1]
        self._low[columns] = np.fmin(self._low[columns], np.fmin.reduce(table))
        self._high[columns] = np.fmax(self._high[columns], np.fmax.reduce(table))

    def end(self, message: Exit, now_s: float) -> None:
        """Record that a worker's process has ended."""
        row = self.row_of.get(message.worker, -1)
        if row >= 0 and self._incarnation[row] == message.incarnation:
            self._incarnations.note(row, message.incarnation, ended=True)
            self._state[row] = _CODE["ended" if message.expected else "failed"]
            self._seen_s[row] = now_s

    def close_second(self, now_s: float) -> None:
        """Add a point to each series, from the values of the last second; update the accounts."""
        count, states = len(self.places), self.states(now_s)
        self.time_account.update(now_s, states, self.steps(), self._job[: len(self.places)])
        moves = self.progress_age_s(now_s) <= self.time_account.stalled_after_s
        trains = (states == _CODE["training"]) & moves
        judged = trains & self._of_one_role()
        self.slow.update(now_s, judged, self.values(OWN_S), self.values(WHOLE_S))
        for column, name in enumerate(self.metrics):
            recent = self._values[:count, column][self._seen_s[:count] >= now_s - 2.0]
            recent = recent[np.isfinite(recent)]
            if len(recent):
                low = np.fmin(self._low[column], recent.min())
                high = np.fmax(self._high[column], recent.max())
                self.series[name].add(now_s, float(low), float(np.median(recent)), float(high))
        self._low.fill(np.nan)
        self._high.fill(np.nan)

    def _of_one_role(self) -> NDArray[np.bool_]:
        """Return which rows are trainers: other roles take longer for a step by design.

        Without a trainer, those of the first role by name.
        """
        roles = [place.role for place in self.places]
        judged = TRAINER if TRAINER in roles else min(roles, default=TRAINER)
        return np.array([role == judged for role in roles], dtype=np.bool_)

    # --- views ---

    def states(self, now_s: float) -> Bytes:
        """Return the state of each row, a byte each."""
        count = len(self.places)
        state = self._state[:count].copy()
        # A last report in the future: this host's clock went back meanwhile.
        quiet = np.abs(now_s - self._seen_s[:count]) > self._stale_after_s
        state[quiet & ~np.isin(state, _OVER)] = _UNREACHABLE
        return state

    def workers_in(self, state: str) -> frozenset[str]:
        """Return the workers whose last reported state this is."""
        rows = np.flatnonzero(self._state[: len(self.places)] == _CODE[state])
        return frozenset(self.places[row].worker for row in rows)

    def values(self, metric: str) -> Floats:
        """Return each row's newest value of a metric, NaN where there is none."""
        count = len(self.places)
        column = self._columns.get(metric)
        if column is None:
            return np.full(count, np.nan)
        return self._values[:count, column]

    def compared(self, metric: str, now_s: float) -> tuple[Floats, float | None]:
        """Return each row's newest value, and the median of training ranks, as last compared."""
        values, slow = self.values(metric), self.slow
        if metric == slow.metric and not np.isnan(slow.median_s):
            values = values.copy()
            values[: len(slow.time_s)] = np.where(
                np.isnan(slow.time_s), values[: len(slow.time_s)], slow.time_s
            )
            return values, slow.median_s
        median = median_of(values[self.states(now_s) == _CODE["training"]])
        return values, median_of(values) if median is None else median

    def waiting(self, now_s: float) -> float | None:
        """Return the share of the step time that ranks in training wait; None if not reported."""
        trains = self.states(now_s) == _CODE["training"]
        wait_s, step_s = self.values(WAIT_S)[trains], self.values(WHOLE_S)[trains]
        known = np.isfinite(wait_s) & (wait_s >= 0) & np.isfinite(step_s) & (step_s > 0)
        if not known.any():
            return None
        return min(1.0, float(wait_s[known].sum() / step_s[known].sum()))

    def steps(self) -> Ints:
        """Return each row's last step, -1 before the first."""
        return self._step[: len(self.places)]

    def progress_age_s(self, now_s: float) -> Floats:
        """Return how long ago each row finished a step, or entered its state."""
        return now_s - self._progress_s[: len(self.places)]

    def worker(self, row: int, now_s: float) -> dict[str, object]:
        """Return the placement, state and newest values of one worker."""
        values = self._values[row, : len(self.metrics)]
        return {
            **self.places[row]._asdict(),
            "state": STATES[self.states(now_s)[row]],
            "step": int(self._step[row]),
            "incarnation": self._incarnation[row],
            "seen_s": round(now_s - float(self._seen_s[row]), 3),
            "metrics": {
                name: float(value)
                for name, value in zip(self.metrics, values, strict=True)
                if np.isfinite(value)
            },
        }

    # --- rows and columns ---

    def _row(self, place: Place, incarnation: int) -> int:
        """Return the row of a worker, a new one if it has none; -1 if all rows are taken."""
        row = self.row_of.get(place.worker, -1)
        if row < 0:
            if len(self.places) >= MAX_WORKERS:
                return -1
            row = self.row_of[place.worker] = len(self.places)
            self.places.append(place)
            self._incarnation.append(incarnation)
            self._grow()
            self.version += 1
        elif self.places[row] != place:
            self.places[row] = place
            self.version += 1
        if self._incarnation[row] != incarnation:
            self._incarnations.note(row, self._incarnation[row], ended=False)
            self._incarnation[row] = incarnation
            self._values[row], self._step[row] = np.nan, -1
        self.strangers.discard(place.worker)
        return row

    def _may_follow(self, row: int, incarnation: int, now_s: float) -> bool:
        """Return whether this is the present incarnation, or one that may follow it."""
        present = self._incarnation[row]
        quiet = abs(now_s - self._seen_s[row]) > self._stale_after_s
        vacant = bool(quiet or self._state[row] in _OVER)
        return incarnation == present or self._incarnations.may_follow(
            row, incarnation, present, vacant=vacant
        )

    def _grow(self) -> None:
        rows, columns = len(self.places), len(self.metrics)
        if rows > len(self._state):
            length = max(64, 2 * len(self._state))
            self._state = _longer(self._state, length, 0)
            self._step = _longer(self._step, length, -1)
            self._job = _longer(self._job, length, 0)
            self._seen_s = _longer(self._seen_s, length, 0.0)
            self._progress_s = _longer(self._progress_s, length, 0.0)
        if rows > self._values.shape[0] or columns > self._values.shape[1]:
            wide = max(8, 2 * columns)
            more = [(0, len(self._state) - len(self._values)), (0, wide - self._values.shape[1])]
            self._values = np.pad(self._values, more, constant_values=np.nan)
            self._low = _longer(self._low, wide, np.nan)
            self._high = _longer(self._high, wide, np.nan)

    def _column(self, metric: str, row: int) -> int:
        """Return the column of a metric, if need be a new one; -1 if the worker may add no more."""
        column = self._columns.get(metric)
        if column is None:
            if len(self.metrics) >= MOST_METRICS or self._added[row] >= MOST_OF_ONE:
                self.leaves_out = True
                return -1
            self._added[row] += 1
            column = self._columns[metric] = len(self.metrics)
            self.metrics.append(metric)
            self.series[metric] = Downsampled()
            self._grow()
        return column

    def _place_header(
        self, metrics: tuple[str, ...], row: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the columns that a batch's values go to, and which values those are."""
        found = [(self._column(name, row), own) for own, name in enumerate(metrics)]
        stored = [pair for pair in found if pair[0] >= 0]
        columns, values = np.array(stored, dtype=np.intp).reshape(-1, 2).T
        if len(self._columns_of) >= _CACHED_HEADERS:
            self._columns_of.clear()
        if len(stored) == len(found) or len(self.metrics) >= MOST_METRICS:  # else others may add it
            self._columns_of[metrics] = columns, values
        return columns, values


def median_of(values: Floats) -> float | None:
    """Return the median of the values that are finite, None if none is."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _longer(array: NDArray[Any], length: int, fill: float) -> NDArray[Any]:
    return np.pad(array, (0, length - len(array)), constant_values=fill)
