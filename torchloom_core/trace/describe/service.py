"""When each watched component was in service: what a rate of failures is over."""

from collections.abc import Mapping, Sequence

from torchloom_core.config.schema import Evaluate
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.describe.spans import Span
from torchloom_core.trace.feed.ends import events_with_ends, heard_of
from torchloom_core.trace.feed.silences import Silence
from torchloom_core.trace.feed.watched import Watched


def in_service(
    bundle: Bundle, watched: Watched, silent: Sequence[Silence], failed_ns: Mapping[int, int]
) -> list[Span]:
    """Return when each watched component was in service within the span of the trace.

    From and until when the topology says. Where it does not: from its first telemetry on if that
    came later than that of the others, and until it failed for good, or the silence that lasts to
    the end.

    Parameters
    ----------
    failed_ns : mapping of int to int
        As :func:`failed_for_good` has it.
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
    """Return when each row came: as much after the start as its telemetry after the first."""
    names = heard_of(bundle, watched)
    asked = tuple(sorted((name, whole.start_ns) for of in names.values() for name in of))
    heard_ns = {name: ns for (name, _), ns in bundle.first_reports(asked).items()}
    first_ns = {
        row: min(heard_ns[name] for name in of if name in heard_ns)
        for row, of in names.items()
        if any(name in heard_ns for name in of)
    }
    late_ns = {row: ns - min(first_ns.values()) for row, ns in first_ns.items()}
    came_ns = {row: whole.start_ns + ns for row, ns in late_ns.items()}
    for event in bundle.events():
        for row in watched.rows_of(event.component):
            came_ns[row] = min(came_ns.get(row, whole.start_ns), event.t_event)
    return came_ns


def failed_for_good(bundle: Bundle, watched: Watched) -> dict[int, int]:
    """Return, of the rows that failed and did not come back, when that was.

    See :func:`~torchloom_core.trace.feed.ends.events_with_ends`.
    """
    events = events_with_ends(bundle, watched, Evaluate().repair_s)
    return {
        row: event.t_event
        for event in events
        if event.fatal and (event.t_resolved or 0) > bundle.manifest.end_ns
        for row in watched.rows_of(event.component)
    }
