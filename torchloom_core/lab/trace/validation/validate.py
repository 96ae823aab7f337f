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
    Event,
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
    return _Validation(bundle).run(progress)


class _Validation:
    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._path = bundle.path
        self._faults: list[str] = []
        self._warnings: list[str] = []

    def run(self, progress: Progress) -> Findings:
        manifest = self._bundle.manifest
        span = (manifest.start_ns, manifest.end_ns)
        if span[1] <= span[0]:
            self._fault(
                MANIFEST,
                f"need end_ns > start_ns {moment_text(span[0])}, was {moment_text(span[1])}",
            )
        self._checksums()
        rows = {file: self._read(file) for file in ROW_OF}
        components = _ids(rows[TOPOLOGY])
        rules = Rules(*span, components=components, jobs=_ids(rows[JOBS]))
        for file in (TOPOLOGY, JOBS, PLACEMENT, EVENTS, ACTIONS):
            for number, row in rows[file]:
                for fault in rules.faults(row):
                    self._fault(f"{file}:{number}", fault)
        for index, fault in parent_faults(part for _, part in rows[TOPOLOGY]):
            self._fault(f"{TOPOLOGY}:{rows[TOPOLOGY][index][0]}", fault)
        telemetry = TelemetryRules(*span, components)
        for path in self._bundle.parquet_files:
            self._faults += telemetry.faults(path, progress)
        self._content([event for _, event in rows[EVENTS]], telemetry.rows)
        return Findings(faults=tuple(self._faults), warnings=tuple(self._warnings))

    def _checksums(self) -> None:
        if not self._bundle.manifest.files:
            self._warnings.append(f"{self._path / MANIFEST}: has no checksums")
            return
        self._faults += changed(self._bundle.path, self._bundle.manifest.files)
        self._warnings += [
            f"{self._path / file}: is not listed in the manifest" for file in self._bundle.unlisted
        ]

    def _read(self, file: str) -> _Numbered:
        path = self._path / file
        return list(self._rows(path, ROW_OF[file])) if path.exists() else []

    def _rows(self, path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
        for number, line in numbered_lines(path):
            try:
                yield number, decode_row(line, kind)
            except TraceError as error:
                self._fault(f"{path.name}:{number}", str(error))

    def _content(self, events: list[Event], samples: int) -> None:
        ids = {event.id for event in events}
        for event in events:
            if event.cause and event.cause not in ids:
                self._warnings.append(
                    f"{self._path / EVENTS}: cause {event.cause!r} of {event.id!r} is not an event"
                )
        if not events and not samples and not self._faults:
            self._fault(EVENTS, "need an event or telemetry, was an empty trace")
        elif not any(event.fatal for event in events):
            self._warnings.append(f"{self._path / EVENTS}: has no failures: no event is fatal")

    def _fault(self, place: str, text: str) -> None:
        self._faults.append(f"{self._path / place}: {text}")


def _ids(rows: _Numbered) -> set[str] | None:
    return {row.id for _, row in rows} or None
