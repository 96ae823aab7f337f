"""The time in service of each watched component, and sets of moments as spans."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torchloom_core.config.schema import Evaluate
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.silences import Silence, events_with_ends, measured_parts
from torchloom_core.lab.trace.feed.watched import Watched


class Span(NamedTuple):
    """From ``start_ns``, up to but without ``end_ns``."""

    start_ns: int
    end_ns: int


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans.

    Examples
    --------
    >>> union([Span(5, 9), Span(0, 2), Span(8, 12), Span(3, 3)])
    [Span(start_ns=0, end_ns=2), Span(start_ns=5, end_ns=12)]
    """
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.start_ns < span.end_ns):
        if merged and span.start_ns <= merged[-1].end_ns:
            merged[-1] = Span(merged[-1].start_ns, max(merged[-1].end_ns, span.end_ns))
        else:
            merged.append(span)
    return merged


def without(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return the parts of ``span`` outside the holes.

    Examples
    --------
    >>> without(Span(0, 10), [Span(8, 12), Span(2, 3)])
    [Span(start_ns=0, end_ns=2), Span(start_ns=3, end_ns=8)]
    """
    left = []
    start_ns = span.start_ns
    for hole in union(holes):
        left.append(Span(start_ns, min(hole.start_ns, span.end_ns)))
        start_ns = max(start_ns, hole.end_ns)
    left.append(Span(start_ns, span.end_ns))
    return [part for part in left if part.start_ns < part.end_ns]


def common_ns(first: Sequence[Span], second: Sequence[Span]) -> int:
    """Return the length of the intersection.

    Examples
    --------
    >>> common_ns([Span(0, 4), Span(6, 9)], [Span(3, 7)])
    2
    """
    return sum(
        max(0, min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns))
        for one in first
        for other in second
    )


def in_service(
    bundle: Bundle, watched: Watched, silent: Sequence[Silence], failed_ns: Mapping[int, int]
) -> list[Span]:
    """Return the time in service of each watched component, within the span of the trace.

    Start and end come from the topology. Without them a component starts with its first telemetry,
    if that is later than that of the others, and ends when it fails for good (``failed_ns``, as
    :func:`failed_for_good` returns it) or stops reporting.
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

    See :func:`~torchloom_core.lab.trace.feed.silences.events_with_ends`.
    """
    events = events_with_ends(bundle, watched, Evaluate().repair_s)
    return {
        row: event.t_event
        for event in events
        if event.fatal and (event.t_resolved or 0) > bundle.manifest.end_ns
        for row in watched.rows_of(event.component)
    }
