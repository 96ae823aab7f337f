"""Estimate the ends of failures that have none: when the component reports again.

A disk that failed does not come back after a day. :mod:`torchloom_core.lab.trace.feed.roster` and
the scoring of forecasts both take the events from here, so they agree on when a component is away.
"""

from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
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
