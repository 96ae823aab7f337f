"""What a table of one's own may mean otherwise than it was taken: a line each, for a person."""

from collections.abc import Iterable, Iterator

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.suggest import listed
from torchloom_core.trace.bundle.schema import Component, Event
from torchloom_core.trace.importers.csv_telemetry import OwnTelemetry
from torchloom_core.trace.importers.mapping import Mapping, Times

_LISTED = 5
_DAY_NS = 86_400 * SECOND_NS
_LONG_SILENT = 10
"""So many intervals of its telemetry, and a day, are a long time to hear nothing."""
_TWENTY_YEARS_NS = 20 * 365 * _DAY_NS
"""Nobody has watched a cluster for so long, nor in the first twenty years after 1970."""


def doubts(
    table: str,
    plan: Mapping,
    events: Iterable[Event],
    parts: Iterable[Component],
    telemetry: OwnTelemetry | None,
    span_ns: tuple[int, int],
) -> Iterator[str]:
    """Yield what somebody should look at, though nothing is wrong with it.

    Parameters
    ----------
    table : str
        Name of the table of events.
    """
    kept = list(events)
    severities = sorted({event.severity for event in kept})
    if len(severities) > 1 and not plan.events.fatal_if and all(event.fatal for event in kept):
        yield (
            f"{table}: all {len(kept)} events are taken for fatal, whatever their severity "
            f"({listed(severities, most=_LISTED)}): events.fatal_if in a mapping, or a column "
            f"'fatal', says which are"
        )
    if telemetry is not None and plan.topology is None:
        unseen = sorted({event.component for event in kept} - {*telemetry.components})
        if unseen:
            yield (
                f"{table}: of {len(unseen)} component{'s' * (len(unseen) > 1)} with an event "
                f"there is no telemetry: {listed(unseen, most=_LISTED)}"
            )
    has_clock = any(event.t_event % _DAY_NS for event in kept)
    if has_clock and telemetry is not None and _is_of_dates(telemetry):
        yield (
            f"{telemetry.path.name}: all rows are of midnight, as dates without a time of day are, "
            "and taken as known then: where they tell of the day to come, give a column 'available'"
        )
    if telemetry is not None and (silent := _silent(kept, parts, telemetry)):
        yield (
            f"{telemetry.path.name}: telemetry of {len(silent)} component{'s' * (len(silent) > 1)} "
            f"ends long before the rest, with no failure ({listed(silent, most=_LISTED)}): who is "
            f"not gone by a column 'until' of the topology counts as healthy to the end"
        )
    times = f"{table}: the times are from {moment_text(span_ns[0])} to {moment_text(span_ns[1])}"
    if span_ns[1] - span_ns[0] > _TWENTY_YEARS_NS:
        yield f"{times}: is one mistyped? times.start and times.end in a mapping leave it out"
    is_default = plan.times.origin == Times().origin and plan.times.unit != "iso8601"
    if is_default and span_ns[1] < _TWENTY_YEARS_NS:
        yield (
            f"{times}: numbers were taken as {plan.times.unit} since 1970, and times.unit and "
            f"times.origin in a mapping say otherwise"
        )


def _is_of_dates(telemetry: OwnTelemetry) -> bool:
    """Return whether no moment in it has a time of day."""
    moments = (telemetry.t_event, telemetry.t_avail)
    return len(telemetry.rows) > 0 and not any((ns % _DAY_NS).any() for ns in moments)


def _silent(
    events: Iterable[Event], parts: Iterable[Component], telemetry: OwnTelemetry
) -> list[str]:
    """Return who was not heard of for long at the end, without a failure or an end that is told."""
    last_ns = telemetry.last_ns
    long_ns = max(_DAY_NS, _LONG_SILENT * telemetry.every_ns)
    since_ns = max(last_ns.values(), default=0) - long_ns
    failed = [(event.t_event, event.component) for event in events if event.fatal]
    failed_ns = {component: t_event for t_event, component in sorted(failed)}
    told = {part.id: part for part in parts}

    def is_silent(name: str, ns: int) -> bool:
        part = told.get(name)
        if ns >= since_ns or (part is not None and part.until_ns is not None):
            return False
        whose = {name, *(part.parents if part else ())} & failed_ns.keys()
        return not any(failed_ns[one] > ns - long_ns for one in whose)

    return sorted(name for name, ns in last_ns.items() if is_silent(name, ns))
