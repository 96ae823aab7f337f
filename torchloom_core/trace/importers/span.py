"""The span that somebody's own tables are of, and what of them lies outside it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torchloom_core.clock import moment_text
from torchloom_core.errors import TraceError
from torchloom_core.trace.bundle.schema import Event
from torchloom_core.trace.bundle.span import refuse_far
from torchloom_core.trace.importers.cells import Ints, moment_ns
from torchloom_core.trace.importers.csv_telemetry import OwnTelemetry
from torchloom_core.trace.importers.mapping import Times

_LISTED = 5


class Clipped(NamedTuple):
    """What is left of the tables once what lies outside the span is left out.

    Attributes
    ----------
    events : dict of int to Event
        By their row.
    lines : tuple of str
        What was left out: how many rows, and which.
    """

    start_ns: int
    end_ns: int
    events: dict[int, Event]
    telemetry: OwnTelemetry | None
    lines: tuple[str, ...]


class _Cut(NamedTuple):
    """What is left out, in words, and whether an event is."""

    when: str
    out: Callable[[Event], bool]
    hint: str = ""


def clip(
    path: Path,
    events: Mapping[int, Event],
    telemetry: OwnTelemetry | None,
    times: Times,
    said_in: Path,
) -> Clipped:
    """Return what lies in the span that the mapping gives, or that the tables are of.

    Where the mapping gives no end, an event that happens more than an interval after the last
    telemetry is left out: nothing was there to be seen of it.

    Parameters
    ----------
    path : Path
        The table of the events.
    said_in : Path
        Where a span would be given, for errors.

    Raises
    ------
    TraceError
        If there is nothing in the tables, the span is empty or of another age, or all events lie
        outside it.
    """
    start_ns, end_ns = (
        None if moment is None else moment_ns(moment, times, f"{said_in}: times.{key}")
        for key, moment in (("start", times.start), ("end", times.end))
    )
    _refuse_empty(start_ns, end_ns, said_in)
    kept, lines = dict(events), list[str]()
    for cut in _cuts(start_ns, end_ns, events.values(), telemetry):
        rows = [row for row, event in kept.items() if cut.out(event)]
        for row in rows:
            del kept[row]
        if rows:
            lines.append(_line(f"{path.name}: events {cut.when}", rows) + cut.hint)
    if events and not kept:
        raise TraceError(f"{path}: need an event in the span, was none; {lines[-1]}")
    if telemetry is not None and (start_ns, end_ns) != (None, None):
        telemetry, left_out = telemetry.within(start_ns, end_ns)
        if len(left_out):
            lines.append(
                _line(
                    f"{telemetry.path.name}: telemetry outside times.start and times.end", left_out
                )
            )
    known = _moments(kept.values(), telemetry)
    if not known:
        raise TraceError(f"{path}: need an event or telemetry, was none")
    start_ns = min(known) if start_ns is None else start_ns
    end_ns = max(known) if end_ns is None else end_ns
    _refuse_empty(start_ns, end_ns, said_in)
    refuse_far(said_in, start_ns, end_ns)
    return Clipped(start_ns, end_ns, kept, telemetry, tuple(lines))


def _refuse_empty(start_ns: int | None, end_ns: int | None, said_in: Path) -> None:
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        raise TraceError(
            f"{said_in}: need a span that is not empty (times.start and times.end in a mapping), "
            f"was {moment_text(start_ns)} to {moment_text(end_ns)}"
        )


def _cuts(
    start_ns: int | None,
    end_ns: int | None,
    events: Iterable[Event],
    telemetry: OwnTelemetry | None,
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
            "; times.end in a mapping keeps them",
        )


def _moments(events: Iterable[Event], telemetry: OwnTelemetry | None) -> list[int]:
    """Return what a span that nobody gives is from and to: no repair goes beyond telemetry."""
    measured = telemetry.span if telemetry is not None else ()
    moments = [ns for event in events for ns in (event.t_event, event.t_avail)]
    ends = [] if measured else [event.t_resolved for event in events]
    return [*moments, *measured, *(ns for ns in ends if ns is not None)]


def _line(what: str, rows: Sequence[int] | Ints) -> str:
    named = ", ".join(str(row) for row in rows[:_LISTED])
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return f"{what}, and left out: {len(rows)} (row{'s' * (len(rows) > 1)} {named}{more})"
