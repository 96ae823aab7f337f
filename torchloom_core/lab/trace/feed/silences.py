"""Find when components are away: estimated ends of failures, and long times without telemetry.

A disk that failed does not come back after a day. A node that was retired or renamed stops
reporting, and has no failures: counted as healthy, it would make the remaining nodes seem more
likely to fail. :mod:`torchloom_core.lab.trace.feed.roster` and the scoring of forecasts both take
the events from here, so they agree on when a component is away.
"""

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Ints
from torchloom_core.lab.trace.bundle.bundle import REPORT_STEP_NS, Bundle
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.bundle.telemetry import distinct
from torchloom_core.lab.trace.feed.watched import Watched

_ENDED_BY_FAILURE = frozenset({"disk"})
"""Kinds of component that are never repaired."""


def events_with_ends(bundle: Bundle, watched: Watched, repair_s: float) -> tuple[Event, ...]:
    """Return the events, with an estimated end where the trace allows one.

    It does for fatal events of one watched component, without an end, that do not follow the job,
    if the component has telemetry or is a disk. The failure lasts ``repair_s``, and on until the
    next telemetry or event of the component; without one, beyond the end of the trace.
    """
    parts = measured_parts(bundle, watched)
    gone_ns = {part.id: part.until_ns for part in bundle.topology() if part.until_ns is not None}
    open_: dict[str, tuple[int, int]] = {}
    for event in bundle.events():
        if not event.fatal or event.t_resolved is not None or event.follows == "job":
            continue
        rows = watched.rows_of(event.component)
        if len(rows) != 1 or not (rows[0] in parts or watched.kind in _ENDED_BY_FAILURE):
            continue
        up_ns = event.t_event + round(repair_s * SECOND_NS)
        if gone_ns.get(watched.ids[rows[0]], up_ns + 1) > up_ns:
            open_[event.id] = rows[0], up_ns
    if not open_:
        return bundle.events()
    since = [(name, up_ns) for row, up_ns in set(open_.values()) for name in parts.get(row, ())]
    first_of = bundle.first_reports(tuple(sorted(since)))
    events_ns = _event_times(bundle, watched)
    beyond_ns = bundle.manifest.end_ns + 1

    def end_ns(row: int, up_ns: int) -> int:
        reported = [first_of.get((name, up_ns), beyond_ns) for name in parts.get(row, ())]
        return min([*reported, *(ns for ns in events_ns.get(row, ()) if ns >= up_ns), beyond_ns])

    return tuple(
        replace(event, t_resolved=end_ns(*open_[event.id])) if event.id in open_ else event
        for event in bundle.events()
    )


def measured_parts(bundle: Bundle, watched: Watched) -> dict[int, list[str]]:
    """Return, by watched row, the components with telemetry: itself and its parts."""
    found: dict[int, list[str]] = {}
    for name in bundle.measured:
        rows = watched.rows_of(name)
        if len(rows) == 1:
            found.setdefault(rows[0], []).append(name)
    return found


def _event_times(bundle: Bundle, watched: Watched) -> dict[int, list[int]]:
    """Return when events of each row became known."""
    found: dict[int, list[int]] = {}
    for event in bundle.events():
        for row in watched.rows_of(event.component):
            found.setdefault(row, []).append(event.t_avail)
    return found


_DAY_NS = 86_400 * SECOND_NS
_LONG = 10
"""A gap is long from this multiple of the usual gap on."""
_DUE = 2
"""A silence begins when this many reports are overdue."""
_OF_FLEET = 0.25
"""The usual gap of the fleet: this share of all time lies in gaps that are no longer.

Regular reports put nearly all time in such gaps, reports only on a change hardly any.
"""
_OF_ONE = 0.5
"""The same for one component, between its first and its last report."""


class Silence(NamedTuple):
    """Of one watched row, half open, nanoseconds."""

    row: int
    from_ns: int
    until_ns: int


class _Signs(NamedTuple):
    """Start, reports and end of each row; ``at`` counts earlier moments with any report."""

    row: Ints
    at: Ints
    ns: Ints


def silences(bundle: Bundle, watched: Watched, *, known_until_ns: int) -> tuple[Silence, ...]:
    """Return the silences of each row, as far as they were known at ``known_until_ns``.

    A silence is a gap of ten times the usual gap, both of the fleet and of the component, counted
    in moments with a report of any component: when all telemetry is missing, no component is
    silent. It begins when the second report is overdue, a day after the last report at the
    earliest, and ends with the next report. Start and end of a component come from the topology,
    or else are those of the trace. A component that never reports is not silent.
    """
    return bundle.once(
        ("silences", known_until_ns), lambda own: _silences(own, watched, known_until_ns)
    )


def _silences(bundle: Bundle, watched: Watched, known_until_ns: int) -> tuple[Silence, ...]:
    moments, row, at = _reports(bundle, watched, known_until_ns)
    signs = _with_ends(bundle, watched, moments, row, at)
    length = np.where(np.diff(signs.row) == 0, np.diff(signs.at), 0)
    usual = _usual(length, _OF_FLEET)
    found = []
    for gap in np.flatnonzero(length > _LONG * usual).tolist():
        one = int(signs.row[gap])
        first, end = np.searchsorted(signs.row, [one, one + 1])
        own = max(usual, _usual(length[first + 1 : end - 2], _OF_ONE))
        if length[gap] <= _LONG * own:
            continue
        due_ns = int(moments[signs.at[gap] + _DUE * own])
        from_ns = max(int(signs.ns[gap]) + _DAY_NS, due_ns)
        if from_ns < signs.ns[gap + 1]:
            found.append(Silence(one, from_ns, int(signs.ns[gap + 1])))
    return tuple(found)


def _reports(bundle: Bundle, watched: Watched, until_ns: int) -> tuple[Ints, Ints, Ints]:
    """Return the moments with a report, and for every report its row and moment number."""
    hours, rows, at = bundle.once("reports by row", lambda own: _reports_by_row(own, watched))
    end = int(np.searchsorted(hours, until_ns // REPORT_STEP_NS))
    before = at < end
    return hours[:end] * REPORT_STEP_NS, rows[before], at[before]


def _reports_by_row(bundle: Bundle, watched: Watched) -> tuple[Ints, Ints, Ints]:
    """Return the hours with a report, and for every report its row and hour number."""
    hour, component = bundle.reports(bundle.manifest.end_ns)
    place = {name: at for at, name in enumerate(bundle.measured)}
    row_of = np.full(len(place), -1, dtype=np.int64)
    for row, names in measured_parts(bundle, watched).items():
        row_of[[place[name] for name in names]] = row
    rows = row_of[component]
    hour, rows = hour[rows >= 0], rows[rows >= 0]
    hours = distinct(hour)
    report = distinct(rows * len(hours) + np.searchsorted(hours, hour))
    return hours, *np.divmod(report, len(hours))


def _with_ends(bundle: Bundle, watched: Watched, moments: Ints, row: Ints, at: Ints) -> _Signs:
    """Return the reports between the start and the end of each row."""
    parts = {part.id: part for part in bundle.topology()}
    manifest, rows = bundle.manifest, np.unique(row)
    listed = [parts.get(watched.ids[one]) for one in rows.tolist()]
    came = [manifest.start_ns if not p or p.from_ns is None else p.from_ns for p in listed]
    went = [manifest.end_ns + 1 if not p or p.until_ns is None else p.until_ns for p in listed]
    ns = np.concatenate([came, moments[at], went])
    ends = np.searchsorted(moments, np.array([came, went]) // REPORT_STEP_NS * REPORT_STEP_NS)
    ends = np.minimum(ends, len(moments) - 1)
    row = np.concatenate([rows, row, rows])
    order = np.argsort(row, kind="stable")
    return _Signs(row[order], np.concatenate([ends[0], at, ends[1]])[order], ns[order])


def _usual(lengths: Ints, share: float) -> int:
    """Return the shortest gap such that ``share`` of the time is in gaps no longer; 0 if none."""
    ordered = np.sort(lengths[lengths > 0])
    total = np.cumsum(ordered)
    return int(ordered[np.searchsorted(total, share * total[-1])]) if len(total) else 0
