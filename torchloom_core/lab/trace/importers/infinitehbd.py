"""Import InfiniteHBD-Trace: faults of 400 GPU servers of an LLM pretraining cluster.

Shou et al., "InfiniteHBD", SIGCOMM 2025, arXiv 2502.03885. The folder holds
``fault_events.csv``: a row where a fault starts and one where it ends.
"""

import csv
import math
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.schema import Component, Event
from torchloom_core.lab.trace.bundle.writer import DAY_NS, BundleWriter, refuse_to_replace

FILE = "fault_events.csv"
NODES = 400
GPUS = 8

_START_NS = int(datetime(2024, 3, 30, tzinfo=UTC).timestamp()) * SECOND_NS
_LAST_NS = _START_NS + 200 * 365 * DAY_NS
_COLUMNS = ("node_id", "t", "ev", "Level", "Class", "Desc")


class _Fault(NamedTuple):
    """Node and description of a fault: what its end has in common with its start."""

    node: str
    level: str
    kind: str
    code: str


class _Started(NamedTuple):
    number: int
    t_ns: int


def import_infinitehbd(folder: Path, out: Path, *, name: str = "", force: bool = False) -> None:
    """Import InfiniteHBD-Trace, faults of 400 GPU servers, as a bundle.

    Every fault took its node out, so each is fatal. A hardware failure follows the component;
    for the others this is unknown. Faults of one description that start on several nodes at the
    same moment have a common cause, the first of them. Nodes that never failed are in no row;
    they are named quiet-001 and so on.

    Parameters
    ----------
    folder : Path
        Folder with fault_events.csv.
    out : Path
        Bundle to write, NAME.tltrace.
    name : str
        Name of the trace. Default: the name of OUT.

    Raises
    ------
    TraceError
        If the file is missing or a row breaks a rule.
    """
    refuse_to_replace(out, force=force)
    path = folder / FILE
    starts, ends = _paired(path)
    events = _events(starts, ends)
    if not events:
        raise TraceError(f"{path}: need a fault, was none")
    nodes = sorted({event.component for event in events})
    if len(nodes) > NODES:
        raise TraceError(f"{path}: need at most {NODES} nodes, was {len(nodes)}")
    nodes += [f"quiet-{number:03}" for number in range(1, NODES - len(nodes) + 1)]
    last_ns = max([event.t_event for event in events] + list(ends.values()))
    with BundleWriter(
        out,
        name=name or out.stem,
        start_ns=_START_NS,
        end_ns=_START_NS + max(1, math.ceil((last_ns - _START_NS) / DAY_NS)) * DAY_NS,
        source="InfiniteHBD-Trace, StepFun; Shou et al., SIGCOMM 2025, arXiv 2502.03885",
        licence="Apache-2.0",
        synthetic=False,
        notes=f"{NODES} servers were watched; those without a fault are named quiet-001 and on.",
        force=force,
    ) as bundle:
        for node in nodes:
            bundle.add(Component(id=node, kind="node", gpus=GPUS))
        for event in events:
            bundle.add(event)


def _paired(path: Path) -> tuple[dict[_Started, _Fault], dict[_Started, int]]:
    """Return the fault of every start, and the ends; an end is that of the oldest open fault."""
    starts: dict[_Started, _Fault] = {}
    ends: dict[_Started, int] = {}
    open_: defaultdict[_Fault, deque[_Started]] = defaultdict(deque)
    last_ns = _START_NS
    for line, row in _rows(path):
        fault = _Fault(row["node_id"], row["Level"], row["Class"], row["Desc"])
        t_ns = _time(f"{path}:{line}", row["t"])
        if t_ns < last_ns:
            raise TraceError(f"{path}:{line}: need t >= that of the row before, was {row['t']!r}")
        last_ns = t_ns
        match row["ev"]:
            case "fault_start":
                started = _Started(len(starts) + 1, t_ns)
                starts[started] = fault
                open_[fault].append(started)
            case "fault_end" if open_[fault]:
                ends[open_[fault].popleft()] = t_ns
            case "fault_end":
                raise TraceError(f"{path}:{line}: need a fault_start before its end, was none")
            case other:
                raise TraceError(f"{path}:{line}: need ev fault_start or fault_end, was {other!r}")
    return starts, ends


def _events(starts: dict[_Started, _Fault], ends: dict[_Started, int]) -> list[Event]:
    first: dict[tuple[int, str, str, str], str] = {}
    events = []
    for started, fault in starts.items():
        name = f"fault-{started.number:04}"
        cause = first.setdefault((started.t_ns, *fault[1:]), name)
        events.append(
            Event(
                id=name,
                t_event=started.t_ns,
                t_avail=started.t_ns,
                component=fault.node,
                kind=fault.kind,
                code=fault.code,
                severity=fault.level,
                cause="" if cause == name else cause,
                follows="component" if fault.level == "Hardware Failure" else "unknown",
                t_resolved=ends.get(started),
            )
        )
    return events


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            for column in _COLUMNS:
                if column not in (reader.fieldnames or ()):
                    raise TraceError(f"{path}:1: need a column {column!r}, was none")
            for row in reader:
                if None in row.values():
                    cells = len(row) - list(row.values()).count(None)
                    raise TraceError(
                        f"{path}:{reader.line_num}: need {len(row)} cells as in the header, was "
                        f"{cells}"
                    )
                yield reader.line_num, row
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None


def _time(place: str, days: str) -> int:
    try:
        t_ns = _START_NS + round(float(days) * DAY_NS / SECOND_NS) * SECOND_NS
    except (ValueError, OverflowError):
        raise TraceError(f"{place}: need t in days, was {days!r}") from None
    if not t_ns < _LAST_NS:
        raise TraceError(f"{place}: need t of less than 200 years, in days, was {days!r}")
    return t_ns
