"""Find the span of a user's tables, and leave out the rows outside it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.schema import Event, refuse_far
from torchloom_core.lab.trace.importers.cells import Ints, moment_ns
from torchloom_core.lab.trace.importers.csv_telemetry import TableTelemetry
from torchloom_core.lab.trace.importers.mapping import Times

_LISTED = 5


class Clipped(NamedTuple):
    """The tables without the rows outside the span, events by row number; notes on those rows."""

    start_ns: int
    end_ns: int
    events: dict[int, Event]
    telemetry: TableTelemetry | None
    lines: tuple[str, ...]


class _Cut(NamedTuple):
    """A rule by which events are left out: its text, its test, and how to include them."""

    when: str
    out: Callable[[Event], bool]
    hint: str = ""


def clip(
    path: Path,
    events: Mapping[int, Event],
    telemetry: TableTelemetry | None,
    times: Times,
    source: Path,
) -> Clipped:
    """Return the rows in the span of the mapping, or by default of the tables.

    Without ``times.end``, events more than one sampling interval after the last telemetry are left
    out: no telemetry could show them. ``path`` is the table of the events; ``source`` the mapping,
    or the table without one, for errors. TraceError if the tables are empty, the span is empty or
    out of range, or all events lie outside it.
    """
    start_ns, end_ns = (
        None if moment is None else moment_ns(moment, times, f"{source}: times.{key}")
        for key, moment in (("start", times.start), ("end", times.end))
    )
    _refuse_empty(start_ns, end_ns, source)
    remaining, lines = dict(events), list[str]()
    for cut in _cuts(start_ns, end_ns, events.values(), telemetry):
        rows = [row for row, event in remaining.items() if cut.out(event)]
        for row in rows:
            del remaining[row]
        if rows:
            lines.append(_line(f"{path.name}: events {cut.when}", rows) + cut.hint)
    if events and not remaining:
        raise TraceError(f"{path}: need an event in the span, was none; {lines[-1]}")
    if telemetry is not None and (start_ns, end_ns) != (None, None):
        telemetry, left_out = telemetry.within(start_ns, end_ns)
        if len(left_out):
            lines.append(
                _line(
                    f"{telemetry.path.name}: telemetry outside times.start and times.end", left_out
                )
            )
    known = _moments(remaining.values(), telemetry)
    if not known:
        raise TraceError(f"{path}: need an event or telemetry, was none")
    start_ns = min(known) if start_ns is None else start_ns
    end_ns = max(known) if end_ns is None else end_ns
    _refuse_empty(start_ns, end_ns, source)
    refuse_far(source, start_ns, end_ns)
    return Clipped(start_ns, end_ns, remaining, telemetry, tuple(lines))


def _refuse_empty(start_ns: int | None, end_ns: int | None, source: Path) -> None:
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        raise TraceError(
            f"{source}: need an end after the start (times.start and times.end in a mapping), "
            f"was {moment_text(start_ns)} to {moment_text(end_ns)}"
        )


def _cuts(
    start_ns: int | None,
    end_ns: int | None,
    events: Iterable[Event],
    telemetry: TableTelemetry | None,
) -> Iterator[_Cut]:
    if start_ns is not None:
        first_ns = start_ns
        yield _Cut(f"before times.start, {moment_text(start_ns)}", lambda e: e.t_event < first_ns)
    if end_ns is not None:
        last_ns = end_ns
        yield _Cut(
            f"after times.end, {moment_text(end_ns)}",
            lambda event: max(event.t_event, event.t_avail) > last_ns,
        )
    elif telemetry is not None and telemetry.span:
        ends_ns = telemetry.span[-1]
        if all(event.t_event <= ends_ns for event in events):
            return
        seen_ns = ends_ns + telemetry.every_ns
        yield _Cut(
            f"after the telemetry ends, {moment_text(ends_ns)}",
            lambda event: event.t_event > seen_ns,
            "; set times.end in a mapping to include them",
        )


def _moments(events: Iterable[Event], telemetry: TableTelemetry | None) -> list[int]:
    """Return the times that bound the default span; with telemetry, repairs do not extend it."""
    measured = telemetry.span if telemetry is not None else ()
    moments = [ns for event in events for ns in (event.t_event, event.t_avail)]
    ends = [] if measured else [event.t_resolved for event in events]
    return [*moments, *measured, *(ns for ns in ends if ns is not None)]


def _line(what: str, rows: Sequence[int] | Ints) -> str:
    named = ", ".join(str(row) for row in rows[:_LISTED])
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return f"{what}, left out: {len(rows)} (row{'s' * (len(rows) > 1)} {named}{more})"
