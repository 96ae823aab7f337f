"""When nothing was heard for long of a component, though nobody says that it came or went.

A node that was retired or renamed reports no more, and has no failures. Taken for healthy, it would
make whoever still reports seem the likelier to fail.
"""

from typing import NamedTuple

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.plugin.arrays import Ints
from torchloom_core.trace.bundle.bundle import REPORT_STEP_NS, Bundle
from torchloom_core.trace.bundle.telemetry import distinct
from torchloom_core.trace.feed.ends import heard_of
from torchloom_core.trace.feed.watched import Watched

_DAY_NS = 86_400 * SECOND_NS
_LONG = 10
"""So many times as long as usual is long."""
_DUE = 2
"""A silence begins when so many reports are due."""
_OF_FLEET = 0.25
"""The share of all time that lies in gaps between reports no longer than is usual for the fleet.

Where reports are regular nearly all of it does; where only what changes is reported, next to none.
"""
_OF_ONE = 0.5
"""The same of one component, between its first report and its last."""


class Silence(NamedTuple):
    """Of one watched row, half open, nanoseconds."""

    row: int
    from_ns: int
    until_ns: int


class _Signs(NamedTuple):
    """Signs of life, ``(signs,)`` int64, by row and time: it came, it reported, it went.

    Attributes
    ----------
    at : Ints
        How many moments with a report of anybody were before.
    """

    row: Ints
    at: Ints
    ns: Ints


def silences(bundle: Bundle, watched: Watched, *, known_until_ns: int) -> tuple[Silence, ...]:
    """Return when nothing was heard of each row for long, as it was known then.

    Long is ten times as long as usual, for the fleet and for the component itself, in moments with
    a report of anybody: nobody is silent while all telemetry is missing. A silence begins when the
    second report after the last is due, and a day after it at the earliest, and ends with the next.
    The topology says of some components when they came and went; the others came and went with the
    trace. Who never reports is not silent: nobody can tell.
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
    """Return the moments with a report of anybody, and of every report whose and in which."""
    hours, whose, at = bundle.once("reports by row", lambda own: _reports_by_row(own, watched))
    known = int(np.searchsorted(hours, until_ns // REPORT_STEP_NS))
    before = at < known
    return hours[:known] * REPORT_STEP_NS, whose[before], at[before]


def _reports_by_row(bundle: Bundle, watched: Watched) -> tuple[Ints, Ints, Ints]:
    """Return the hours with a report of anybody, and of every report whose and in which."""
    hour, component = bundle.reports(bundle.manifest.end_ns)
    place = {name: at for at, name in enumerate(bundle.measured)}
    row_of = np.full(len(place), -1, dtype=np.int64)
    for row, names in heard_of(bundle, watched).items():
        row_of[[place[name] for name in names]] = row
    whose = row_of[component]
    hour, whose = hour[whose >= 0], whose[whose >= 0]
    hours = distinct(hour)
    report = distinct(whose * len(hours) + np.searchsorted(hours, hour))
    return hours, *np.divmod(report, len(hours))


def _with_ends(bundle: Bundle, watched: Watched, moments: Ints, row: Ints, at: Ints) -> _Signs:
    """Return the reports with when each row came before them, and when it went after them."""
    parts = {part.id: part for part in bundle.topology()}
    manifest, rows = bundle.manifest, np.unique(row)
    told = [parts.get(watched.ids[one]) for one in rows.tolist()]
    came = [manifest.start_ns if not p or p.from_ns is None else p.from_ns for p in told]
    went = [manifest.end_ns + 1 if not p or p.until_ns is None else p.until_ns for p in told]
    ns = np.concatenate([came, moments[at], went])
    ends = np.searchsorted(moments, np.array([came, went]) // REPORT_STEP_NS * REPORT_STEP_NS)
    ends = np.minimum(ends, len(moments) - 1)
    row = np.concatenate([rows, row, rows])
    order = np.argsort(row, kind="stable")
    return _Signs(row[order], np.concatenate([ends[0], at, ends[1]])[order], ns[order])


def _usual(lengths: Ints, share: float) -> int:
    """Return the shortest gap such that ``share`` of the time is in gaps no longer; 0 of none."""
    ordered = np.sort(lengths[lengths > 0])
    spent = np.cumsum(ordered)
    return int(ordered[np.searchsorted(spent, share * spent[-1])]) if len(spent) else 0
