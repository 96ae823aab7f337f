"""Summarise a trace bundle in figures; ``torchloom trace describe`` calls it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from torchloom_core.config.evaluation import Evaluate
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.learning.ranking import poisson_between
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event, Exposure
from torchloom_core.lab.trace.describe.sampling import Sampling, sampling
from torchloom_core.lab.trace.feed.silences import (
    Silence,
    events_with_ends,
    measured_parts,
    silences,
)
from torchloom_core.lab.trace.feed.watched import Watched, watch

HOUR_S = 3600
DAY_S = 86_400
HORIZONS_S = (HOUR_S, DAY_S, 7 * DAY_S)
"""Horizons whose prevalence is always reported."""
QUANTILES = (0.1, 0.5, 0.9)


class Span(NamedTuple):
    """From ``start_ns``, up to but without ``end_ns``."""

    start_ns: int
    end_ns: int


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Failures per component and day in service, with its 95 % interval."""

    failures: int
    component_days: float
    per_day: float
    low: float
    high: float


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of fatal faults; ``quantiles_s`` at 0.1, 0.5 and 0.9 of those that ended."""

    resolved: int
    unresolved: int
    quantiles_s: tuple[float, ...] = ()


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a bundle."""

    name: str
    digest: str
    start_ns: int
    end_ns: int
    days: float
    source: str
    licence: str
    synthetic: bool
    exposure: dict[str, Exposure]
    watched: dict[str, int]
    """Number of watched components, by their kind."""
    silent: int
    """Watched components that stopped reporting, without those that left by the topology or failed
    for good, see :func:`~torchloom_core.lab.trace.feed.silences.silences`."""
    events: int
    fatal: int
    kinds: dict[str, int]
    causes: dict[str, int]
    """Events by kind, and by the kind of the event that caused them; "" without a cause."""
    follows: dict[str, float]
    """Shares of the fatal events."""
    rate: Rate
    mtbf_s: float | None
    """Mean time between failures of the fleet: span over fatal events."""
    repairs: Repairs
    prevalence: dict[str, float | None]
    """By horizon, the share of the components' time in service after which a fatal fault of the
    component followed within it; without time under repair and the span's last horizon."""
    telemetry: dict[str, Sampling]


def describe(bundle: Bundle, *, horizon_s: float | None = None) -> Description:
    """Summarise a bundle, with one more prevalence at ``horizon_s``, seconds."""
    horizons_s = sorted({*HORIZONS_S, *([] if horizon_s is None else [horizon_s])})
    manifest, events, watched = bundle.manifest, bundle.events(), watch(bundle)
    fatal = [event for event in events if event.fatal]
    silent = silences(bundle, watched, known_until_ns=manifest.end_ns)
    failed_ns = failed_for_good(bundle, watched)
    there = in_service(bundle, watched, silent, failed_ns)
    there_s = {
        name: (span.end_ns - span.start_ns) / SECOND_NS
        for name, span in zip(watched.ids, there, strict=True)
    }
    span_s = (manifest.end_ns - manifest.start_ns) / SECOND_NS
    touched = sum(len(watched.rows_of(event.component)) for event in fatal)
    kind_of = {event.id: event.kind for event in events}
    return Description(
        name=manifest.name,
        digest=bundle.digest(),
        start_ns=manifest.start_ns,
        end_ns=manifest.end_ns,
        days=span_s / DAY_S,
        source=manifest.source,
        licence=manifest.licence,
        synthetic=manifest.synthetic,
        exposure=manifest.exposure,
        watched={watched.kind: len(watched.ids)},
        silent=len(
            {one.row for one in silent if one.from_ns < failed_ns.get(one.row, one.until_ns)}
        ),
        events=len(events),
        fatal=len(fatal),
        kinds=_counts(event.kind for event in events),
        causes=_counts(kind_of.get(event.cause, event.cause) for event in events),
        follows={
            name: count / len(fatal)
            for name, count in _counts(event.follows for event in fatal).items()
        },
        rate=failure_rate(touched, sum(there_s.values()) / DAY_S),
        mtbf_s=span_s / len(fatal) if fatal else None,
        repairs=_repairs(fatal),
        prevalence=_prevalence(fatal, watched, there, manifest.end_ns, horizons_s),
        telemetry=sampling(bundle, there_s),
    )


def failure_rate(failures: int, component_days: float) -> Rate:
    """Return failures per day with the exact interval of a Poisson count.

    Examples
    --------
    >>> rate = failure_rate(0, 100.0)
    >>> rate.low, round(rate.high, 4)
    (0.0, 0.0369)
    """
    days = component_days or float("nan")
    low, high = poisson_between(failures)
    return Rate(
        failures=failures,
        component_days=component_days,
        per_day=failures / days,
        low=low / days,
        high=high / days,
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    """Count the names, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _repairs(fatal: Sequence[Event]) -> Repairs:
    lengths_s = [
        (event.t_resolved - event.t_event) / SECOND_NS
        for event in fatal
        if event.t_resolved is not None
    ]
    quantiles = np.quantile(lengths_s, QUANTILES).tolist() if lengths_s else []
    return Repairs(
        resolved=len(lengths_s),
        unresolved=len(fatal) - len(lengths_s),
        quantiles_s=tuple(quantiles),
    )


def _prevalence(
    fatal: Sequence[Event],
    watched: Watched,
    there: Sequence[Span],
    end_ns: int,
    horizons_s: Iterable[float],
) -> dict[str, float | None]:
    failures: defaultdict[int, list[int]] = defaultdict(list)
    outages: defaultdict[int, list[Span]] = defaultdict(list)
    for event in fatal:
        for row in watched.rows_of(event.component):
            failures[row].append(event.t_event)
            if event.t_resolved is not None:
                outages[row].append(Span(event.t_event, event.t_resolved))
    shares: dict[str, float | None] = {}
    for horizon_s in horizons_s:
        horizon_ns = round(horizon_s * SECOND_NS)
        judged_ns = followed_ns = 0
        for row, span in enumerate(there):
            seen = Span(span.start_ns, min(span.end_ns, end_ns - horizon_ns))
            at_risk = without(seen, outages[row]) if seen.start_ns < seen.end_ns else []
            judged_ns += sum(part.end_ns - part.start_ns for part in at_risk)
            before = union(Span(ts_ns - horizon_ns, ts_ns) for ts_ns in failures[row])
            followed_ns += common_ns(at_risk, before)
        shares[horizon_text(horizon_s)] = followed_ns / judged_ns if judged_ns else None
    return shares


def horizon_text(seconds: float) -> str:
    """Return a horizon in its largest whole unit.

    Examples
    --------
    >>> horizon_text(604_800), horizon_text(129_600), horizon_text(90.5)
    ('7 d', '36 h', '90.5 s')
    """
    units = ((DAY_S, "d"), (HOUR_S, "h"), (60, "min"))
    unit_s, unit = next((one for one in units if seconds % one[0] == 0), (1, "s"))
    return f"{seconds / unit_s:g} {unit}"


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
    """Return when each row failed that did not come back, see :func:`events_with_ends`."""
    events = events_with_ends(bundle, watched, Evaluate().repair_s)
    return {
        row: event.t_event
        for event in events
        if event.fatal and (event.t_resolved or 0) > bundle.manifest.end_ns
        for row in watched.rows_of(event.component)
    }
