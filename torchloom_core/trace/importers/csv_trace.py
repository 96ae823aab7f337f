"""Import a CSV file of faults of one's own, with a topology and telemetry where there are."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from torchloom_core.errors import TraceError
from torchloom_core.trace.importers.cells import (
    FIRST_ROW,
    moment_ns,
    need_columns,
    read_table,
    rename,
    times_ns,
)
from torchloom_core.trace.importers.csv_telemetry import LongTable, read_telemetry
from torchloom_core.trace.importers.mapping import Events, Mapping, Times, Topology, load_mapping
from torchloom_core.trace.lines import convert_row
from torchloom_core.trace.moments import moment_text
from torchloom_core.trace.rules import Rules, parent_faults
from torchloom_core.trace.schema import Component, Event
from torchloom_core.trace.writer import BundleWriter

_Part = TypeVar("_Part", Component, Event)

_EVENT_TIMES = ("t_event", "t_avail", "t_resolved")
_TOPOLOGY_TIMES = ("from_ns", "until_ns")


class _Span(NamedTuple):
    start_ns: int
    end_ns: int


def import_csv(
    events: Path,
    out: Path,
    *,
    mapping: Path | None = None,
    name: str = "",
    source: str = "",
    licence: str = "",
    force: bool = False,
) -> None:
    """Write a CSV file of events, a row an event, as a bundle.

    Without a mapping the columns ``time`` (ISO 8601), ``component`` and ``kind`` are needed;
    ``resolved`` and every other column of ``events.jsonl`` are taken by their name, the rest is
    kept as it is. What is not said is known at once, fatal, and resolved nobody knows when.

    Parameters
    ----------
    mapping : Path, optional
        See :mod:`torchloom_core.trace.importers.mapping`.
    name, source : str
        Absent: the name of the file.

    Raises
    ------
    TraceError
        At the first row that breaks a rule, with file and row; row 1 is the header.
    ConfigError
        If the mapping is wrong.
    """
    plan = load_mapping(mapping) if mapping else Mapping()
    folder = mapping.parent if mapping else events.parent
    rows = _events(events, plan.events, plan.times)
    parts = _topology(folder, plan.topology, plan.times) if plan.topology else {}
    telemetry = read_telemetry(folder, plan.telemetry, plan.times) if plan.telemetry else None
    span = _span(events, rows.values(), telemetry, plan.times, mapping or events)
    known = {part.id for part in parts.values()} or None
    rules = Rules(*span, components=known)
    if plan.topology:
        _check_topology(folder / plan.topology.file, parts, rules)
    _check(events, dict(sorted(rows.items(), key=lambda item: item[1].t_event)), rules)
    if telemetry is not None:
        telemetry.check(*span, known)
    with BundleWriter(
        out,
        name=name or events.stem,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        source=source or events.name,
        licence=licence or "not stated",
        synthetic=False,
        load_dependent=plan.telemetry.load_dependent if plan.telemetry else (),
        force=force,
    ) as bundle:
        for part in parts.values():
            bundle.add(part)
        for event in rows.values():
            bundle.add(event)
        if telemetry is not None:
            bundle.telemetry(telemetry.table)


def _events(path: Path, plan: Events, times: Times) -> dict[int, Event]:
    """Return the events by their row."""
    table = rename(read_table(path), plan.columns, _columns(Event), path)
    need_columns(table, {"t_event", "component", "kind"} - plan.constants.keys(), path)
    rows = {}
    for number, cells in _rows(table, plan.constants, _EVENT_TIMES, times, path):
        cells.setdefault("t_avail", cells.get("t_event"))
        cells.setdefault("id", f"{path.stem}-{number}")
        rows[number] = _convert(cells, Event, f"{path}:{number}")
    return rows


def _topology(folder: Path, plan: Topology, times: Times) -> dict[int, Component]:
    path = folder / plan.file
    table = rename(read_table(path), plan.columns, _columns(Component), path)
    need_columns(table, {"id", "kind"} - plan.constants.keys(), path)
    rows = {}
    for number, cells in _rows(table, plan.constants, _TOPOLOGY_TIMES, times, path):
        if isinstance(parents := cells.get("parents"), str):
            cells["parents"] = [name.strip() for name in parents.split(";")]
        rows[number] = _convert(cells, Component, f"{path}:{number}")
    if not rows:
        raise TraceError(f"{path}: need a component, was none")
    return rows


def _rows(
    table: pd.DataFrame,
    constants: dict[str, Any],
    time_columns: Iterable[str],
    times: Times,
    path: Path,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the cells of every row; empty cells are absent."""
    columns: dict[str, list[Any]] = {str(name): table[name].tolist() for name in table.columns}
    for name in time_columns:
        if name in table.columns:
            given = table[name] != ""
            values = np.full(len(table), None, dtype=object)
            values[given.to_numpy()] = times_ns(table.loc[given, name], times, path).tolist()
            columns[name] = ["" if value is None else value for value in values]
    for at, index in enumerate(table.index):
        cells = {name: column[at] for name, column in columns.items() if column[at] != ""}
        yield int(index) + FIRST_ROW, {**constants, **cells}


def _convert(cells: dict[str, Any], kind: type[_Part], place: str) -> _Part:
    try:
        return convert_row(cells, kind, from_text=True)
    except TraceError as error:
        raise TraceError(f"{place}: {error}") from None


def _check_topology(path: Path, parts: dict[int, Component], rules: Rules) -> None:
    _check(path, parts, rules)
    for index, fault in parent_faults(parts.values()):
        raise TraceError(f"{path}:{list(parts)[index]}: {fault}")


def _check(path: Path, rows: dict[int, _Part], rules: Rules) -> None:
    faults = [(number, fault) for number, row in rows.items() for fault in rules.faults(row)]
    if faults:
        number, fault = min(faults, key=itemgetter(0))
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise TraceError(f"{path}:{number}: {fault}{more}")


def _span(
    path: Path,
    events: Iterable[Event],
    telemetry: LongTable | None,
    times: Times,
    said_in: Path,
) -> _Span:
    """Return the span that the mapping gives, or that of everything in the tables."""
    moments = [ns for row in events for ns in (row.t_event, row.t_avail, row.t_resolved)]
    known = [ns for ns in moments if ns is not None]
    known += telemetry.span if telemetry else ()
    if not known:
        raise TraceError(f"{path}: need an event or telemetry, was none")
    start, end = (
        None if moment is None else moment_ns(moment, times, f"{said_in}: times.{key}")
        for key, moment in (("start", times.start), ("end", times.end))
    )
    span = _Span(min(known) if start is None else start, max(known) if end is None else end)
    if span.end_ns <= span.start_ns:
        raise TraceError(
            f"{said_in}: need a span that is not empty (times.start and times.end in a mapping), "
            f"was {moment_text(span.start_ns)} to {moment_text(span.end_ns)}"
        )
    return span


def _columns(kind: type[Event | Component]) -> set[str]:
    return set(kind.__struct_fields__) - {"extra"}
