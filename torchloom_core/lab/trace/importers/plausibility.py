"""Warn of a user's table that is valid but may have been read otherwise than meant."""

from collections.abc import Collection, Iterable, Iterator

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.suggest import listed
from torchloom_core.lab.trace.bundle.schema import Component, Event
from torchloom_core.lab.trace.importers.csv_telemetry import TableTelemetry
from torchloom_core.lab.trace.importers.mapping import Mapping, Times

_LISTED = 5
_DAY_NS = 86_400 * SECOND_NS
_TWENTY_YEARS_NS = 20 * 365 * _DAY_NS
"""A longer span is implausible, and so is one that ends within twenty years of 1970."""


def plausibility_warnings(
    table: str,
    plan: Mapping,
    events: Iterable[Event],
    parts: Collection[Component],
    telemetry: TableTelemetry | None,
    span_ns: tuple[int, int],
) -> Iterator[str]:
    """Yield a warning, one line each, for what a person should check.

    Parameters
    ----------
    table : str
        Name of the table of events.
    """
    events = list(events)
    severities = sorted({event.severity for event in events})
    if len(severities) > 1 and not plan.events.fatal_if and all(event.fatal for event in events):
        yield (
            f"{table}: all {len(events)} events count as fatal, whatever their severity "
            f"({listed(severities, most=_LISTED)}): set events.fatal_if in a mapping, or add a "
            f"column 'fatal'"
        )
    if telemetry is not None:
        if plan.topology is None:
            unseen = {event.component for event in events} - {*telemetry.components}
            if unseen:
                yield f"{table}: {_some(unseen)} with events but no telemetry: {_named(unseen)}"
        yield from _of_telemetry(events, parts, telemetry)
    times = f"{table}: the times are from {moment_text(span_ns[0])} to {moment_text(span_ns[1])}"
    if span_ns[1] - span_ns[0] > _TWENTY_YEARS_NS:
        yield f"{times}: check for typing errors, or set times.start and times.end in a mapping"
    is_default = plan.times.origin == Times().origin and plan.times.unit != "iso8601"
    if is_default and span_ns[1] < _TWENTY_YEARS_NS:
        yield (
            f"{times}: numbers are read as {plan.times.unit} since 1970; if that is wrong, set "
            f"times.unit and times.origin in a mapping"
        )


def _of_telemetry(
    events: Collection[Event], parts: Collection[Component], telemetry: TableTelemetry
) -> Iterator[str]:
    name = telemetry.path.name
    if any(event.t_event % _DAY_NS for event in events) and _is_known_by_date(telemetry):
        yield (
            f"{name}: all rows are dated midnight and count as available then; if a row covers "
            "the day after, add a column 'available'"
        )
    if silent := _without_telemetry(parts, telemetry):
        yield (
            f"{name}: {_some(silent)} of the topology without telemetry ({_named(silent)}): "
            f"components without telemetry are treated as healthy until they fail"
        )


def _some(names: Collection[str]) -> str:
    return f"{len(names)} component{'s' * (len(names) > 1)}"


def _named(names: Iterable[str]) -> str:
    return listed(sorted(names), most=_LISTED)


def _is_known_by_date(telemetry: TableTelemetry) -> bool:
    """Return whether all rows are dated midnight, and some are available then."""
    at_once = telemetry.t_avail <= telemetry.t_event
    return bool(at_once.any()) and not (telemetry.t_event % _DAY_NS).any()


def _without_telemetry(parts: Iterable[Component], telemetry: TableTelemetry) -> set[str]:
    """Return the components without telemetry of each kind that has some."""
    measured = {*telemetry.components}
    names = [(part.kind, part.id) for part in parts]
    kinds = {kind for kind, name in names if name in measured}
    return {name for kind, name in names if kind in kinds and name not in measured}
