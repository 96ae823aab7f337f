"""Import a user's CSV file of faults, with an optional topology and telemetry."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.suggest import listed, nearest
from torchloom_core.lab.trace.bundle.lines import convert_row
from torchloom_core.lab.trace.bundle.schema import Component, Event
from torchloom_core.lab.trace.bundle.writer import BundleWriter, refuse_to_replace
from torchloom_core.lab.trace.importers.cells import (
    FIRST_ROW,
    are_empty,
    need_cells,
    need_columns,
    plain_cells,
    rename,
    times_ns,
    warn_mistyped,
    with_points,
)
from torchloom_core.lab.trace.importers.csv_telemetry import TableTelemetry, read_telemetry
from torchloom_core.lab.trace.importers.faults import Faults
from torchloom_core.lab.trace.importers.mapping import (
    Events,
    Mapping,
    Times,
    Topology,
    load_mapping,
)
from torchloom_core.lab.trace.importers.span import clip
from torchloom_core.lab.trace.importers.tables import read_table
from torchloom_core.lab.trace.validation.rules import Rules, TelemetryRules, parent_faults

_Part = TypeVar("_Part", Component, Event)

_log = logging.getLogger(__name__)

_EVENT_TIMES = ("t_event", "t_avail", "t_resolved")
_TOPOLOGY_TIMES = ("from_ns", "until_ns")


def import_csv(
    events: Path,
    out: Path,
    *,
    map: Path | None = None,
    name: str = "",
    source: str = "",
    licence: str = "",
    force: bool = False,
) -> None:
    """Import a CSV file with the columns time, component and kind as a bundle.

    Columns of events.jsonl, such as resolved, are read by name; other columns become attributes.
    By default an event is available at once, fatal, and its end is unknown. Duplicate rows and
    rows outside the span are left out; the bundle's notes count them.

    Parameters
    ----------
    events : Path
        CSV file, one event per row.
    out : Path
        Bundle to write, NAME.tltrace.
    map : Path, optional
        TOML file that maps column names, time formats, a topology and telemetry.
    name : str
        Name of the trace. Default: that in the mapping, else the name of OUT.
    source : str
        Source of the data. Default: the name of the CSV file.
    licence : str
        Licence of the data.

    Raises
    ------
    TraceError
        If rows break a rule: one line for each of the first, with file and row.
    ConfigError
        If the mapping is wrong.
    """
    refuse_to_replace(out, force=force)
    plan = load_mapping(map) if map else Mapping()
    folder = map.parent if map else events.parent
    faults = Faults()
    rows, copies = _events(events, plan, faults)
    parts = _topology(folder, plan, plan.topology, faults) if plan.topology else {}
    telemetry = None
    if plan.telemetry:
        telemetry = read_telemetry(folder, plan, plan.telemetry, faults)
    faults.refuse()
    span = clip(events, rows, telemetry, plan.times, map or events)
    rows, telemetry = span.events, span.telemetry
    known = {part.id for part in parts.values()} or None
    rules = Rules(span.start_ns, span.end_ns, components=known)
    if plan.topology:
        path = folder / plan.topology.file
        _check(path, parts, rules, faults)
        for index, fault in parent_faults(parts.values()):
            faults.add(path, list(parts)[index], fault)
    _check(events, dict(sorted(rows.items(), key=lambda item: item[1].t_event)), rules, faults)
    if telemetry is not None:
        telemetry.check(TelemetryRules(span.start_ns, span.end_ns, known), faults)
    faults.refuse()
    notes = [*faults.warnings, *span.lines]
    if copies:
        notes.append(f"{events.name}: duplicate rows left out: {copies}")
    notes += plausibility_warnings(
        events.name, plan, rows.values(), parts.values(), telemetry, (span.start_ns, span.end_ns)
    )
    for note in notes:
        _log.warning("%s", note)
    with BundleWriter(
        out,
        name=name or plan.name or out.stem,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        source=source or events.name,
        licence=licence or "not stated",
        synthetic=False,
        load_dependent=plan.telemetry.load_dependent if plan.telemetry else (),
        notes="\n".join(notes),
        force=force,
    ) as bundle:
        for part in parts.values():
            bundle.add(part)
        for event in rows.values():
            bundle.add(event)
        if telemetry is not None:
            for table in telemetry.tables():
                bundle.telemetry(table)


def _events(path: Path, mapping: Mapping, faults: Faults) -> tuple[dict[int, Event], int]:
    """Return the events by row number, and the number of duplicate rows."""
    plan = mapping.events
    table = rename(read_table(path, mapping.csv, faults), plan.columns, _columns(Event), path)
    warn_mistyped(table, _columns(Event), path)
    needed = [name for name in ("t_event", "component", "kind") if name not in plan.constants]
    _refuse_fatal_if(table, plan, path)
    rows: dict[int, Event] = {}
    seen: set[str] = set()
    copies = 0
    for number, cells in _rows(table, needed, plan.constants, _EVENT_TIMES, mapping, path, faults):
        if (text := repr(cells)) in seen:
            copies += 1
            continue
        seen.add(text)
        cells.setdefault("t_avail", cells["t_event"])
        cells.setdefault("id", f"{path.stem}-{number}")
        if plan.fatal_if:
            cells["fatal"] = any(
                str(cells.get(name, "")) in these for name, these in plan.fatal_if.items()
            )
        if event := _convert(cells, Event, number, path, faults):
            rows[number] = event
    return rows, copies


def _refuse_fatal_if(table: pd.DataFrame, plan: Events, path: Path) -> None:
    if plan.fatal_if and ("fatal" in table.columns or "fatal" in plan.constants):
        raise TraceError(f"{path}: need events.fatal_if or a column 'fatal', was both")
    need_columns(table, plan.fatal_if.keys(), path)
    for name, these in plan.fatal_if.items():
        known = {str(cell) for cell in table[name].unique()}
        for cell in these:
            if cell not in known:
                raise TraceError(
                    f"{path}: need events.fatal_if.{name} with values of the table, was {cell!r}"
                    f"{nearest(cell, known)}"
                )


def _topology(
    folder: Path, mapping: Mapping, plan: Topology, faults: Faults
) -> dict[int, Component]:
    path = folder / plan.file
    table = rename(read_table(path, mapping.csv, faults), plan.columns, _columns(Component), path)
    warn_mistyped(table, _columns(Component), path)
    if table.empty:
        raise TraceError(f"{path}: need a component, was none")
    needed = [name for name in ("id", "kind") if name not in plan.constants]
    rows: dict[int, Component] = {}
    for number, cells in _rows(
        table, needed, plan.constants, _TOPOLOGY_TIMES, mapping, path, faults
    ):
        if isinstance(parents := cells.get("parents"), str):
            cells["parents"] = [name.strip() for name in parents.split(";")]
        if part := _convert(cells, Component, number, path, faults):
            rows[number] = part
    return rows


def _rows(
    table: pd.DataFrame,
    needed: Sequence[str],
    constants: dict[str, Any],
    time_columns: Iterable[str],
    mapping: Mapping,
    path: Path,
    faults: Faults,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the cells of every row that has all ``needed`` cells."""
    need_columns(table, needed, path)
    need_cells(table, needed, path, faults)
    columns: dict[str, list[Any]] = {
        str(name): plain_cells(with_points(table[name], mapping.csv)) for name in table.columns
    }
    for name in time_columns:
        if name in table.columns:
            given = ~are_empty(table[name]) | (name in needed)  # (rows,)
            moments = times_ns(table.loc[given, name], mapping, path, faults)
            values = np.full(len(table), None, dtype=object)
            values[given.to_numpy()] = moments.tolist()
            columns[name] = ["" if value is None else value for value in values]
    for at, index in enumerate(table.index):
        cells = {name: column[at] for name, column in columns.items() if column[at] != ""}
        if all(name in cells for name in needed):
            yield int(index) + FIRST_ROW, {**constants, **cells}


def _convert(
    cells: dict[str, Any], kind: type[_Part], number: int, path: Path, faults: Faults
) -> _Part | None:
    """Return the row; None, and a fault, if it is invalid."""
    try:
        return convert_row(cells, kind, from_text=True)
    except TraceError as error:
        faults.add(path, number, str(error))
        return None


def _check(path: Path, rows: dict[int, _Part], rules: Rules, faults: Faults) -> None:
    for number, row in rows.items():
        for fault in rules.faults(row):
            faults.add(path, number, fault)


def _columns(kind: type[Event | Component]) -> set[str]:
    return set(kind.__struct_fields__) - {"extra"}


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
    """Yield a warning, one line each, for what a person should check in ``table``."""
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
