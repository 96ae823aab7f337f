"""Labels: the outcome of every component at every time, from the events of a trace.

Fitting and scoring share them, so both use the same samples and the same rules.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.learning.forecast_score import WORDING, TaskWording
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Component, Event
from torchloom_core.lab.trace.feed.silences import Silence
from torchloom_core.lab.trace.feed.watched import Watched

PREVENTS = ("drain", "migrate")
"""Actions that hide whether the component would have failed."""
_FIRST_NS, _LAST_NS = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to forecast: an incident within the horizon; or to detect: one in progress.

    Alarms of a component within ``horizon_s`` count once; ``lead_s`` before an incident a forecast
    is too late to help. An event without a known end lasts ``repair_s``; one that follows the job
    ends at once. ``kinds`` of event count; if empty, in a forecast the fatal ones, in a detection
    all. Events of a component with gaps shorter than ``merge_s`` are one incident. TraceError if a
    time is negative, or the lead is not shorter than the horizon.
    """

    horizon_s: float
    repair_s: float
    kind: Literal["forecast", "detect"] = "forecast"
    lead_s: float = 0.0
    kinds: tuple[str, ...] = ()
    merge_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.lead_s < self.horizon_s:
            raise TraceError(
                f"need 0 <= lead_s < horizon_s, was {self.lead_s:g} and {self.horizon_s:g}"
            )
        if min(self.merge_s, self.repair_s) < 0:
            raise TraceError(
                f"need merge_s and repair_s >= 0, was {self.merge_s:g} and {self.repair_s:g}"
            )

    @property
    def wording(self) -> TaskWording:
        """The words for an incident of this task."""
        return WORDING[self.kind]

    @property
    def horizon_ns(self) -> int:
        """The horizon in nanoseconds."""
        return round(self.horizon_s * SECOND_NS)

    @property
    def lead_ns(self) -> int:
        """The lead in nanoseconds."""
        return round(self.lead_s * SECOND_NS)

    def due_ns(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the half-open time span in which an alarm for this incident is true."""
        if self.kind == "detect":
            return start_ns, end_ns
        return start_ns - self.horizon_ns, start_ns - self.lead_ns

    def counts(self, event: Event) -> bool:
        """Return whether the event is of a kind to forecast or detect."""
        if self.kinds:
            return event.kind in self.kinds
        return event.fatal or self.kind == "detect"

    def shows(self, event: Event) -> bool:
        """Return whether the event is visible to predictors; a detector must not see its target."""
        return self.kind == "forecast" or not self.counts(event)

    def end_ns(self, event: Event) -> int:
        """Return when the event ended, by ``repair_s`` if unknown."""
        if event.t_resolved is not None:
            return max(event.t_event, event.t_resolved)
        lasted_s = 0.0 if event.follows == "job" else self.repair_s
        return event.t_event + round(lasted_s * SECOND_NS)


@dataclass(frozen=True, eq=False)
class Incidents:
    """Incidents: merged events of one watched component, sorted by start, then row.

    All are ``(incidents,)``; ``end_ns`` is that of the last event, and an incident is ``certain``
    if the label of one of its events is.
    """

    row: Ints
    start_ns: Ints
    end_ns: Ints
    certain: Ints


class _Span(NamedTuple):
    """Half-open time span of one row, nanoseconds."""

    row: int
    from_ns: int
    until_ns: int
    certain: bool = True


def incidents(
    events: Iterable[Event], watched: Watched, task: Task, *, known_until_ns: int
) -> Incidents:
    """Return the incidents as known at ``known_until_ns``."""
    merge_ns = round(task.merge_s * SECOND_NS)
    merged: list[_Span] = []
    spans = (
        span
        for event in events
        if task.counts(event)
        for span in _spans(event, watched, task.end_ns(event), known_until_ns)
    )
    for span in sorted(spans):
        last = merged[-1] if merged else None
        if last and last.row == span.row and span.from_ns < last.until_ns + merge_ns:
            until_ns = max(last.until_ns, span.until_ns)
            certain = last.certain or span.certain
            merged[-1] = last._replace(until_ns=until_ns, certain=certain)
        else:
            merged.append(span)
    merged.sort(key=lambda span: (span.from_ns, span.row))
    table = np.array(merged, dtype=np.int64).reshape(-1, 4)
    return Incidents(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def outcomes(
    events: Sequence[Event],
    actions: Iterable[ActionTaken],
    watched: Watched,
    times_ns: Ints,
    task: Task,
    *,
    known_until_ns: int,
    span: tuple[int, int],
    topology: Iterable[Component] = (),
    silences: Iterable[Silence] = (),
) -> Floats:
    """Return ``(times, components)``: 1, 0, or NaN where unknown; ``times_ns`` are sorted.

    A forecast is 1 where an incident starts in ``(t + lead, t + horizon]`` and 0 where none does.
    It is NaN where the component is under repair, drained (for at least a horizon), absent or
    silent; where an incident starts sooner than the lead; and where the horizon is not completely
    observed: an uncertain incident starts within it, the component is drained, gone or falls silent
    for good, or the watched span or the known time ends. Positives of such samples are dropped as
    well: otherwise times before an end would have more failures, and a clock would have skill. A
    detection is 1 while an incident is in progress. Events that became available after
    ``known_until_ns`` are ignored.
    """
    grid = _Grid(times_ns, len(watched.ids))
    found = incidents(events, watched, task, known_until_ns=known_until_ns)
    row_of = {name: row for row, name in enumerate(watched.ids)}
    presence = [
        (row_of[part.id], part.from_ns, part.until_ns) for part in topology if part.id in row_of
    ]
    silent = [_Span(*silence) for silence in silences]
    end_ns = min(span[1], known_until_ns)
    if task.kind == "detect":
        grid.put(found.row, found.start_ns, found.end_ns, found.certain)
    else:
        gone = [(row, until_ns) for row, _, until_ns in presence if until_ns is not None]
        drained = [
            stay
            for action in actions
            if action.kind in PREVENTS
            for stay in _spans(
                action,
                watched,
                max(action.t_end or 0, action.t_event + task.horizon_ns),
                known_until_ns,
            )
        ]
        outages = [
            outage
            for event in events
            if event.fatal or task.counts(event)
            for outage in _spans(event, watched, task.end_ns(event), known_until_ns)
        ]
        last = [silence for silence in silent if silence.until_ns > end_ns]
        ends = gone + [(stay.row, stay.from_ns) for stay in (*drained, *last)]
        _put_starts(grid, found, task)
        # The horizon of the samples in these spans reaches an end: t < end <= t + horizon.
        grid.blank(
            _Span(row, last_ns - task.horizon_ns, last_ns)
            for row, last_ns in _censored_ends(ends, outages)
        )
        grid.blank(drained)
        grid.blank(outages)
        grid.values[grid.times_ns > end_ns - task.horizon_ns] = np.nan
    for row, from_ns, until_ns in presence:
        grid.blank([_Span(row, _FIRST_NS, from_ns)] if from_ns is not None else [])
        grid.blank([_Span(row, until_ns, _LAST_NS)] if until_ns is not None else [])
    grid.blank(silent)
    grid.values[(grid.times_ns < span[0]) | (grid.times_ns > end_ns)] = np.nan
    return grid.values


def _put_starts(grid: "_Grid", found: Incidents, task: Task) -> None:
    """Mark the samples before each start; uncertain ones are set last, so that they prevail."""
    first, last = found.start_ns - task.horizon_ns, found.start_ns - task.lead_ns
    sure = found.certain == 1
    grid.put(found.row[sure], first[sure], last[sure], found.certain[sure])
    uncertain_from_ns = np.where(sure, last, first)
    grid.put(found.row, uncertain_from_ns, found.start_ns, np.zeros_like(found.certain))


def _censored_ends(
    ends: Iterable[tuple[int, int]], outages: Iterable[_Span]
) -> Iterator[tuple[int, int]]:
    """Yield the ends of observation, except during an outage: its failure was observed."""
    down: defaultdict[int, list[_Span]] = defaultdict(list)
    for outage in outages:
        down[outage.row].append(outage)
    for row, end_ns in ends:
        if not any(outage.from_ns <= end_ns <= outage.until_ns for outage in down[row]):
            yield row, end_ns


def _spans(
    row: Event | ActionTaken, watched: Watched, until_ns: int, known_until_ns: int
) -> Iterator[_Span]:
    """Yield the span of an event or action for each of its components, once it is known."""
    if row.t_avail <= known_until_ns:
        certain = isinstance(row, Event) and row.label == "certain"
        for component in watched.rows_of(row.component):
            yield _Span(component, row.t_event, until_ns, certain)


class _Grid:
    """Outcomes of all times and rows, set span by span."""

    def __init__(self, times_ns: Ints, rows: int) -> None:
        self.times_ns = times_ns
        self.values: Floats = np.zeros((len(times_ns), rows))

    def put(self, rows: Ints, from_ns: Ints, until_ns: Ints, certain: Ints) -> None:
        """Set each half-open span to 1, or to NaN where it is not certain."""
        first = np.searchsorted(self.times_ns, from_ns)
        last = np.searchsorted(self.times_ns, until_ns)
        values = np.where(certain == 1, 1.0, np.nan)
        for row, i, j, value in zip(rows, first, last, values, strict=True):
            self.values[i:j, row] = value

    def blank(self, spans: Iterable[_Span]) -> None:
        """Set each span to NaN."""
        for row, from_ns, until_ns, _ in spans:
            i, j = np.searchsorted(self.times_ns, (from_ns, until_ns))
            self.values[i:j, row] = np.nan
