"""What learned predictors compute from a view: one row of numbers for every worker.

A predictor builds one :class:`Features`, takes its ``needs`` for its own, and calls ``compute``
with every view, in ``fit`` and in ``forecast`` alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import PluginError
from torchloom_core.learning.window_sums import WindowSums
from torchloom_core.plugin.arrays import Floats, samples_in
from torchloom_core.plugin.faults import incidents, places_of
from torchloom_core.plugin.needs import Need, NeedFaults, PredictorNeed
from torchloom_core.plugin.view import FleetView

MEMORY_HALF_LIVES = 5
"""How many half lives of faults are remembered; what is older weighs less than 1/32."""

_NOW = ("newest {}", "age of {} in s", "newest {} above the fleet's median")
_OVER_SPAN = (
    "mean of {} over {}",
    "standard deviation of {} over {}",
    "lowest {} over {}",
    "highest {} over {}",
    "slope of {} over {} in units a second",
    "share of scrapes without {} over {}",
    "mean of {} over {} above that of the {} before",
)
_HISTORY = ("faults", "seconds since the last fault", "faults of the rack's other nodes")


@dataclass(frozen=True)
class Features:
    """Numbers from windows of telemetry and from the history of faults, all workers at once.

    Parameters
    ----------
    metrics : tuple of str
        What is looked at. One that the fleet does not measure is unknown throughout.
    spans_s : tuple of float
        Over how long, seconds; each is also compared with as long a span before it.
    half_lives_s : tuple of float
        Ages at which a fault counts half, seconds; none: nothing about faults.
    incident_s : float
        Faults on one node closer together than this are one incident, seconds.

    Raises
    ------
    PluginError
        If a metric, span or half life is named twice, or a number is not above 0.

    Examples
    --------
    >>> from torchloom_core.learning import Features
    >>> from torchloom_core.testing import view_of
    >>> features = Features(metrics=("temp",), spans_s=(4.0,))
    >>> view = view_of({"temp": [[50.0] * 4 + [50.0, 51.0, 52.0, 53.0]]})
    >>> row = dict(zip(features.names, features.compute(view)[0].tolist(), strict=True))
    >>> row["mean of temp over 4 s above that of the 4 s before"]
    1.5
    """

    metrics: tuple[str, ...] = ()
    spans_s: tuple[float, ...] = ()
    half_lives_s: tuple[float, ...] = ()
    incident_s: float = 60.0

    def __post_init__(self) -> None:
        for what in ("metrics", "spans_s", "half_lives_s"):
            for one, other in combinations(getattr(self, what), 2):
                if one == other:
                    raise PluginError(f"{what}: need each once, was {one} twice")
        for what in ("spans_s", "half_lives_s"):
            for seconds in getattr(self, what):
                if not seconds > 0:
                    raise PluginError(f"{what}: need seconds > 0, was {seconds}")

    @property
    def needs(self) -> tuple[PredictorNeed, ...]:
        """What a predictor with these features has to declare."""
        longest = 2 * max(self.spans_s, default=0.0)
        metrics = tuple(Need(metric, longest) for metric in self.metrics)
        return (*metrics, NeedFaults(self.fault_memory_s)) if self.half_lives_s else metrics

    @property
    def fault_memory_s(self) -> float:
        """How far back faults have to be remembered, seconds."""
        return MEMORY_HALF_LIVES * max(self.half_lives_s, default=0.0)

    @property
    def names(self) -> tuple[str, ...]:
        """What each feature is, in words."""
        names = ["seconds since anything was heard"]
        for metric in self.metrics:
            names += [text.format(metric) for text in _NOW]
            for span_s in self.spans_s:
                over = in_words(span_s)
                names += [text.format(metric, over, over) for text in _OVER_SPAN]
        return (*names, *self.history_names)

    @property
    def history_names(self) -> tuple[str, ...]:
        """What each of the last features is, which are those about faults."""
        if not self.half_lives_s:
            return ()
        memory = in_words(self.fault_memory_s)
        return (
            *(f"{what} in the last {memory}" for what in _HISTORY),
            *(f"faults, halved every {in_words(s)}" for s in self.half_lives_s),
        )

    def of(self, view: FleetView) -> Floats:
        """Return what :meth:`compute` does, computed once for all who ask of the same view."""
        return view.once(self, self.compute)

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, features)``, NaN where unknown, never infinite."""
        blocks = [np.asarray(view.heartbeat_age_s)[:, None]]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for metric in self.metrics:
                blocks.append(_present(view, metric))
                if self.spans_s:
                    blocks.append(_over_spans(view, metric, self.spans_s))
        if self.half_lives_s:
            blocks.append(self._history(view))
        features = np.concatenate(blocks, axis=1)
        features[~np.isfinite(features)] = np.nan
        return features

    def history(self, features: Floats) -> "History":
        """Return the columns about faults of what was computed; there have to be half lives."""
        faults, since_s, in_rack, *decayed = features[:, -len(self.history_names) :].T
        return History(faults, since_s, in_rack, np.column_stack(decayed))

    def _history(self, view: FleetView) -> Floats:
        """Return ``(workers, 3 + half lives)`` of the faults of each worker's node."""
        places = places_of(view)
        row_of = {place: row for row, place in enumerate(dict.fromkeys(places))}
        rows = np.fromiter((row_of[place] for place in places), np.intp, len(places))
        at, age_s = self._incident_rows(view, row_of)
        count = np.bincount(at, minlength=len(row_of)).astype(float)
        since_s = np.full(len(row_of), np.nan)
        since_s[at] = age_s  # oldest first, so the newest stays
        decayed = [
            np.bincount(at, 0.5 ** (age_s / half_life_s), len(row_of))
            for half_life_s in self.half_lives_s
        ]
        return np.column_stack(
            [count[rows], since_s[rows], _others_in_rack(view, rows, count)]
            + [column[rows] for column in decayed]
        )

    def _incident_rows(
        self, view: FleetView, row_of: dict[str, int]
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return row and age in seconds of each incident, those of a row oldest first."""
        rows: list[int] = []
        ages_s: list[float] = []
        for place, faults in view.faults_of.items():
            if place not in row_of:
                continue
            began = incidents(faults, self.incident_s)
            rows += [row_of[place]] * len(began)
            ages_s += [(view.now_ns - ts_ns) / SECOND_NS for ts_ns in began]
        at, age_s = np.array(rows, dtype=np.intp), np.array(ages_s, dtype=float)
        remembered = age_s <= self.fault_memory_s
        return at[remembered], np.maximum(age_s[remembered], 0.0)


class History(NamedTuple):
    """What the faults of a worker's node look like from now.

    Attributes
    ----------
    faults : (workers,) float64
        How many incidents are remembered.
    since_s : (workers,) float64
        Seconds since the last of them, NaN without one.
    in_rack : (workers,) float64
        How many the other nodes of its rack had, NaN without a rack.
    decayed : (workers, half lives) float64
        Sum of 2^(-age / half life) over the incidents.

    Examples
    --------
    >>> from torchloom_core.learning import Features, History
    >>> from torchloom_core.plugin import Fault
    >>> from torchloom_core.testing import view_of
    >>> features = Features(half_lives_s=(86_400.0,))
    >>> fault = Fault(worker="", node="n0", kind="xid", ts_ns=1_700_000_000 * 10**9, id="f1")
    >>> view = view_of(workers=2, now_s=1_700_086_400.0, faults=[fault])
    >>> history: History = features.history(features.compute(view))
    >>> history.faults, history.since_s, history.decayed[:, 0]
    (array([1., 0.]), array([86400.,    nan]), array([0.5, 0. ]))
    """

    faults: Floats
    since_s: Floats
    in_rack: Floats
    decayed: Floats


def in_words(seconds: float) -> str:
    """Return a span of time as a person says it.

    Examples
    --------
    >>> from torchloom_core.learning import in_words
    >>> in_words(604800.0), in_words(5400.0), in_words(45.0)
    ('7 d', '1.5 h', '45 s')
    """
    for unit, least_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= least_s:
            return f"{seconds / least_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def faults_in_words(faults: float, memory_s: float) -> str:
    """Return how many faults there were.

    Examples
    --------
    >>> from torchloom_core.learning import faults_in_words
    >>> faults_in_words(1.0, 86_400.0)
    '1 fault in the last 1 d'
    """
    return f"{faults:.0f} fault{'' if faults == 1 else 's'} in the last {in_words(memory_s)}"


def _others_in_rack(view: FleetView, rows: NDArray[np.intp], count: Floats) -> Floats:
    """Return ``(workers,)`` faults of the other nodes of the worker's rack, NaN without one."""
    rack_of = {row: rack for row, rack in zip(rows.tolist(), view.rack, strict=True) if rack}
    in_rack = dict.fromkeys(rack_of.values(), 0.0)
    for row, rack in rack_of.items():
        in_rack[rack] += count[row]
    others = np.full(len(count), np.nan)
    for row, rack in rack_of.items():
        others[row] = in_rack[rack] - count[row]
    return others[rows]


def _present(view: FleetView, metric: str) -> Floats:
    """Return ``(workers, 3)``: newest value, its age, and how far it is above the fleet."""
    newest = np.asarray(view.latest(metric))
    known = newest[np.isfinite(newest)]
    median = np.median(known) if len(known) else np.nan
    return np.column_stack([newest, view.age_s(metric), newest - median])


def _over_spans(view: FleetView, metric: str, spans_s: Sequence[float]) -> Floats:
    """Return ``(workers, 7 x spans)`` of one metric.

    The window is cut where a span or the span before it begins; each piece is summed once, and
    the pieces are added up from the newest backwards.
    """
    lengths = [samples_in(span_s, view.tick_s) for span_s in spans_s]
    window = view.window(metric, 2 * max(spans_s)).T  # (samples, workers): as it is stored
    samples = len(window)
    ends = sorted({length for n in lengths for length in (n, min(2 * n, samples))} | {samples})
    pieces = WindowSums.of(window, [samples - end for end in reversed(ends)], view.tick_s)
    row_of = {end: row for row, end in enumerate(reversed(ends))}
    columns = []
    for n in lengths:
        span, both = row_of[n], row_of[min(2 * n, samples)]
        columns += pieces.describe(span)
        columns.append(pieces.mean(span) - pieces.mean_between(both, span))
    return np.column_stack(columns)
