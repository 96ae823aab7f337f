"""The time in service of each watched component: the base of a failure rate."""

from collections.abc import Mapping, Sequence

from torchloom_core.config.schema import Evaluate
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.describe.spans import Span
from torchloom_core.lab.trace.feed.ends import events_with_ends, measured_parts
from torchloom_core.lab.trace.feed.silences import Silence
from torchloom_core.lab.trace.feed.watched import Watched


def in_service(
    bundle: Bundle, watched: Watched, silent: Sequence[Silence], failed_ns: Mapping[int, int]
) -> list[Span]:
    """Return the time in service of each watched component, within the span of the trace.

    Start and end come from the topology. Without them a component starts with its first telemetry,
    if that is later than that of the others, and ends when it fails for good or stops reporting.

    Parameters
    ----------
    failed_ns : mapping of int to int
        As returned by :func:`failed_for_good`.
    """
    whole = Span(bundle.manifest.start_ns, bundle.manifest.end_ns)
    parts = {part.id: part for part in bundle.topology()}
    came_ns = _came(bundle, watched, whole)
    fell_ns = {one.row: one.from_ns for one in silent if one.until_ns > whole.end_ns}
    ended_ns = {**fell_ns, **failed_ns}
    spans = []
    for row, name in enumerate(watched.ids):
        part = parts.get(name)
        from_ns, until_ns = (part.from_ns, part.until_ns) if part else (None, None)
        from_ns = came_ns.get(row, whole.start_ns) if from_ns is None else from_ns
        until_ns = ended_ns.get(row, whole.end_ns) if until_ns is None else until_ns
        start_ns = max(from_ns, whole.start_ns)
        spans.append(Span(start_ns, max(start_ns, min(until_ns, whole.end_ns))))
    return spans


def _came(bundle: Bundle, watched: Watched, whole: Span) -> dict[int, int]:
    """Return the start of each row: as long after the trace's as its first telemetry is late."""
    names = measured_parts(bundle, watched)
    since = tuple(sorted((name, whole.start_ns) for of in names.values() for name in of))
    report_ns = {name: ns for (name, _), ns in bundle.first_reports(since).items()}
    first_ns = {
        row: min(report_ns[name] for name in of if name in report_ns)
        for row, of in names.items()
        if any(name in report_ns for name in of)
    }
    late_ns = {row: ns - min(first_ns.values()) for row, ns in first_ns.items()}
    came_ns = {row: whole.start_ns + ns for row, ns in late_ns.items()}
    for event in bundle.events():
        for row in watched.rows_of(event.component):
            came_ns[row] = min(came_ns.get(row, whole.start_ns), event.t_event)
    return came_ns


def failed_for_good(bundle: Bundle, watched: Watched) -> dict[int, int]:
    """Return the time of failure of each row that did not come back.

    See :func:`~torchloom_core.lab.trace.feed.ends.events_with_ends`.
    """
    events = events_with_ends(bundle, watched, Evaluate().repair_s)
    return {
        row: event.t_event
        for event in events
        if event.fatal and (event.t_resolved or 0) > bundle.manifest.end_ns
        for row in watched.rows_of(event.component)
    }
