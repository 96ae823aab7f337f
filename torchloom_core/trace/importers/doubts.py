"""What a table of one's own may mean otherwise than it was taken: a line each, for a person."""

from collections.abc import Collection, Iterable, Iterator

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.suggest import listed
from torchloom_core.trace.bundle.schema import Component, Event
from torchloom_core.trace.importers.csv_telemetry import OwnTelemetry
from torchloom_core.trace.importers.mapping import Mapping, Times

_LISTED = 5
_DAY_NS = 86_400 * SECOND_NS
_TWENTY_YEARS_NS = 20 * 365 * _DAY_NS
"""Nobody has watched a cluster for so long, nor in the first twenty years after 1970."""


def doubts(
    table: str,
    plan: Mapping,
    events: Iterable[Event],
    parts: Collection[Component],
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
    if telemetry is not None:
        if plan.topology is None:
            unseen = {event.component for event in kept} - {*telemetry.components}
            if unseen:
                yield (
                    f"{table}: of {_some(unseen)} with an event there is no telemetry: "
                    f"{_named(unseen)}"
                )
        yield from _of_telemetry(kept, parts, telemetry)
    times = f"{table}: the times are from {moment_text(span_ns[0])} to {moment_text(span_ns[1])}"
    if span_ns[1] - span_ns[0] > _TWENTY_YEARS_NS:
        yield f"{times}: is one mistyped? times.start and times.end in a mapping leave it out"
    is_default = plan.times.origin == Times().origin and plan.times.unit != "iso8601"
    if is_default and span_ns[1] < _TWENTY_YEARS_NS:
        yield (
            f"{times}: numbers were taken as {plan.times.unit} since 1970, and times.unit and "
            f"times.origin in a mapping say otherwise"
        )


def _of_telemetry(
    events: Collection[Event], parts: Collection[Component], telemetry: OwnTelemetry
) -> Iterator[str]:
    name = telemetry.path.name
    if any(event.t_event % _DAY_NS for event in events) and _is_known_by_date(telemetry):
        yield (
            f"{name}: all rows are of midnight, as dates without a time of day are, and taken as "
            "known then: where they tell of the day to come, give a column 'available'"
        )
    if never := _never_heard(parts, telemetry):
        yield (
            f"{name}: of {_some(never)} of the topology there is no telemetry ({_named(never)}): "
            f"who does not fail counts as healthy throughout"
        )


def _some(names: Collection[str]) -> str:
    return f"{len(names)} component{'s' * (len(names) > 1)}"


def _named(names: Iterable[str]) -> str:
    return listed(sorted(names), most=_LISTED)


def _is_known_by_date(telemetry: OwnTelemetry) -> bool:
    """Return whether all of it is of midnight, and some of it known no later than that."""
    at_once = telemetry.t_avail <= telemetry.t_event
    return bool(at_once.any()) and not (telemetry.t_event % _DAY_NS).any()


def _never_heard(parts: Iterable[Component], telemetry: OwnTelemetry) -> set[str]:
    """Return those of which there is no telemetry, though there is of others of their kind."""
    heard = {*telemetry.components}
    listed_by = [(part.kind, part.id) for part in parts]
    kinds = {kind for kind, name in listed_by if name in heard}
    return {name for kind, name in listed_by if kind in kinds and name not in heard}
