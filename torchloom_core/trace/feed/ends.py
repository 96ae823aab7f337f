"""When failures were over of which nobody knows the end: once the component was heard of again.

A disk that failed does not come back after a day. :mod:`torchloom_core.trace.feed.roster` and
whatever judges forecasts take the events from here, so that nobody is at risk in one of them who
is away in the other.
"""

from msgspec.structs import replace

from torchloom_core.clock import SECOND_NS
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import Event
from torchloom_core.trace.feed.watched import Watched

_ENDED_BY_FAILURE = frozenset({"disk"})
"""Kinds of component that no repair brings back."""


def events_with_ends(bundle: Bundle, watched: Watched, repair_s: float) -> tuple[Event, ...]:
    """Return the events, with an end where it follows from what was heard afterwards.

    That is of fatal ones of one watched component, with no known end, that do not follow the job.
    Where telemetry is of that component, or none is of it and it is a disk, its failure lasts
    ``repair_s``, and on until the next telemetry or event of it; if there is none, beyond the end
    of the trace. Of the others nothing is known, and they stay as they are.
    """
    heard = heard_of(bundle, watched)
    gone_ns = {part.id: part.until_ns for part in bundle.topology() if part.until_ns is not None}
    asked: dict[str, tuple[int, int]] = {}
    for event in bundle.events():
        if not event.fatal or event.t_resolved is not None or event.follows == "job":
            continue
        rows = watched.rows_of(event.component)
        if len(rows) != 1 or not (rows[0] in heard or watched.kind in _ENDED_BY_FAILURE):
            continue
        up_ns = event.t_event + round(repair_s * SECOND_NS)
        if gone_ns.get(watched.ids[rows[0]], up_ns + 1) > up_ns:
            asked[event.id] = rows[0], up_ns
    if not asked:
        return bundle.events()
    reports = [(name, up_ns) for row, up_ns in set(asked.values()) for name in heard.get(row, ())]
    first_of = bundle.first_reports(tuple(sorted(reports)))
    told = _told(bundle, watched)
    beyond_ns = bundle.manifest.end_ns + 1

    def end_ns(row: int, up_ns: int) -> int:
        reported = [first_of.get((name, up_ns), beyond_ns) for name in heard.get(row, ())]
        return min([*reported, *(ns for ns in told.get(row, ()) if ns >= up_ns), beyond_ns])

    return tuple(
        replace(event, t_resolved=end_ns(*asked[event.id])) if event.id in asked else event
        for event in bundle.events()
    )


def heard_of(bundle: Bundle, watched: Watched) -> dict[int, list[str]]:
    """Return, by watched row, what telemetry is of: it, and the parts of it."""
    found: dict[int, list[str]] = {}
    for name in bundle.measured:
        rows = watched.rows_of(name)
        if len(rows) == 1:
            found.setdefault(rows[0], []).append(name)
    return found


def _told(bundle: Bundle, watched: Watched) -> dict[int, list[int]]:
    """Return when events were told of each row."""
    found: dict[int, list[int]] = {}
    for event in bundle.events():
        for row in watched.rows_of(event.component):
            found.setdefault(row, []).append(event.t_avail)
    return found
