"""Check a trace bundle against all rules; ``torchloom trace validate`` calls it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.checksums import changed
from torchloom_core.lab.trace.bundle.lines import decode_row, numbered_lines
from torchloom_core.lab.trace.bundle.schema import (
    ACTIONS,
    EVENTS,
    JOBS,
    MANIFEST,
    PLACEMENT,
    ROW_OF,
    TOPOLOGY,
    Row,
)
from torchloom_core.lab.trace.validation.rules import Progress, Rules, TelemetryRules, parent_faults

_Numbered = list[tuple[int, Any]]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Faults and warnings, one line each with file and row; a bundle without faults is valid."""

    faults: tuple[str, ...]
    warnings: tuple[str, ...] = msgspec.field(name="remarks")


def validate(path: Path, progress: Progress = lambda _path, _done, _rows: None) -> Findings:
    """Read all of the bundle at ``path`` and check it; ``progress`` is of the telemetry."""
    try:
        bundle = Bundle.open(path)
    except TraceError as error:
        return Findings(faults=(str(error),), warnings=())
    manifest = bundle.manifest
    span = (manifest.start_ns, manifest.end_ns)
    faults, warnings = list[str](), list[str]()
    if span[1] <= span[0]:
        faults.append(
            f"{path / MANIFEST}: need end_ns > start_ns {moment_text(span[0])}, was "
            f"{moment_text(span[1])}"
        )
    if manifest.files:
        faults += changed(path, manifest.files)
        warnings += [f"{path / file}: is not listed in the manifest" for file in bundle.unlisted]
    else:
        warnings.append(f"{path / MANIFEST}: has no checksums")
    rows = {file: [*_rows(path / file, kind, faults)] for file, kind in ROW_OF.items()}
    components = _ids(rows[TOPOLOGY])
    rules = Rules(*span, components=components, jobs=_ids(rows[JOBS]))
    for file in (TOPOLOGY, JOBS, PLACEMENT, EVENTS, ACTIONS):
        for number, row in rows[file]:
            faults += [f"{path / file}:{number}: {fault}" for fault in rules.faults(row)]
    for index, fault in parent_faults(part for _, part in rows[TOPOLOGY]):
        faults.append(f"{path / TOPOLOGY}:{rows[TOPOLOGY][index][0]}: {fault}")
    telemetry = TelemetryRules(*span, components)
    for file_path in bundle.parquet_files:
        faults += telemetry.faults(file_path, progress)
    events, place = [event for _, event in rows[EVENTS]], path / EVENTS
    ids = {event.id for event in events}
    warnings += [
        f"{place}: cause {event.cause!r} of {event.id!r} is not an event"
        for event in events
        if event.cause and event.cause not in ids
    ]
    if not events and not telemetry.rows and not faults:
        faults.append(f"{place}: need an event or telemetry, was an empty trace")
    elif not any(event.fatal for event in events):
        warnings.append(f"{place}: has no failures: no event is fatal")
    return Findings(faults=tuple(faults), warnings=tuple(warnings))


def _rows(path: Path, kind: type[Row], faults: list[str]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file with their numbers, and add a fault for each line that is none."""
    for number, line in numbered_lines(path) if path.exists() else ():
        try:
            yield number, decode_row(line, kind)
        except TraceError as error:
            faults.append(f"{path}:{number}: {error}")


def _ids(rows: _Numbered) -> set[str] | None:
    return {row.id for _, row in rows} or None
