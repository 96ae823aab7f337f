"""Read exports of a cluster's own tools line by line, and write their faults as a bundle."""

import logging
import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Component, Event, Row
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.importers.faults import SHOWN

Progress = Callable[[str, float, float], None]
"""Takes the name of a file, the bytes read and its size."""

LONGEST_LINE = 1 << 20
"""Bytes of one line of an export."""

_EVERY_LINES = 10_000
_log = logging.getLogger(__name__)


def silent(what: str, done: float, total: float) -> None:
    """Report no progress."""


class LineErrors:
    """Collect the errors of a file's lines: the first ones, and the number of all."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._count = 0

    def add(self, path: Path, line: int, text: str) -> None:
        """Add "need <rule>, was <value>" of one line."""
        self._count += 1
        if len(self._first) < SHOWN:
            self._first.append(f"{path}:{line}: {text}")

    def refuse(self) -> None:
        """Raise a TraceError if there are errors: one line each, and their number."""
        if not self._count:
            return
        more = [f"{self._count} errors in all"] if self._count > 1 else []
        raise TraceError("\n".join([*self._first, *more]))


def lines_of(path: Path, progress: Progress = silent) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with numbers; bytes that are no UTF-8 are replaced.

    TraceError if the file cannot be read, or a line is longer than ``LONGEST_LINE``.
    """
    try:
        with open_regular(path) as file:
            size, done, number = max(path.stat().st_size, 1), 0, 0
            while line := file.readline(LONGEST_LINE + 1):
                number, done = number + 1, done + len(line)
                if len(line) > LONGEST_LINE:
                    raise TraceError(
                        f"{path}:{number}: need a line of at most {LONGEST_LINE} bytes, was a "
                        f"longer one"
                    )
                if number % _EVERY_LINES == 0:
                    progress(path.name, min(done, size), size)
                if text := line.decode(errors="replace").rstrip("\r\n"):
                    yield number, text.removeprefix("\ufeff") if number == 1 else text
            progress(path.name, size, size)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """Return a time zone by its name in the IANA database; ConfigError if there is none."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"--zone: need a time zone such as Europe/Berlin, was {name!r}") from None


def nanoseconds(when: datetime) -> int:
    """Return a time with a zone as nanoseconds since 1970."""
    return int(when.timestamp()) * SECOND_NS + when.microsecond * 1000


@lru_cache(maxsize=4096)
def time_ns(text: str, zone: zoneinfo.ZoneInfo) -> int:
    """Return an ISO 8601 time, of ``zone`` if it has no offset; TraceError: rule and value.

    Of an hour that summer time repeats, the first is taken.
    """
    try:
        when = datetime.fromisoformat(text.strip())
        return nanoseconds(when if when.tzinfo else when.replace(tzinfo=zone))
    except (ValueError, OverflowError, OSError):
        raise TraceError(f"need an ISO 8601 time, was {shown(text)}") from None


@dataclass
class Found:
    """What the exports say: faults, actions, all named nodes, the first and the last time."""

    events: list[Event] = field(default_factory=list)
    actions: list[ActionTaken] = field(default_factory=list)
    nodes: dict[str, Component] = field(default_factory=dict)
    first_ns: int | None = None
    last_ns: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason to number of rows, for the notes."""

    def node(self, name: str, gpus: int = 0) -> None:
        """Add a node that was there, whether it failed or not."""
        if name not in self.nodes or gpus > self.nodes[name].gpus:
            self.nodes[name] = Component(id=name, kind="node", gpus=gpus)

    def saw(self, *times_ns: int | None) -> None:
        """Extend the span."""
        for ns in times_ns:
            if ns is not None:
                self.first_ns = ns if self.first_ns is None else min(self.first_ns, ns)
                self.last_ns = ns if self.last_ns is None else max(self.last_ns, ns)

    def leave_out(self, why: str, rows: int = 1) -> None:
        """Count rows that are not imported."""
        self.left_out[why] = self.left_out.get(why, 0) + rows

    def write(
        self, out: Path, source: Path, what: str, *, name: str, notes: Iterable[str], force: bool
    ) -> None:
        """Write the bundle; TraceError if nothing was found that dates it."""
        events = sorted(self.events, key=lambda event: (event.t_event, event.component))
        self.saw(*(event.t_event for event in events), *(event.t_avail for event in events))
        self.saw(*(action.t_event for action in self.actions))
        for name_of in [e.component for e in events] + [a.component for a in self.actions]:
            self.node(name_of)
        if self.first_ns is None or self.last_ns is None:
            raise TraceError(f"{source}: need {what}, was none")
        warnings = [f"{why}: {count}" for why, count in self.left_out.items()]
        for line in warnings:
            _log.warning("%s", line)
        with BundleWriter(
            out,
            name=name or out.stem,
            start_ns=self.first_ns,
            end_ns=self.last_ns + SECOND_NS,
            source=source.name,
            licence="not stated",
            synthetic=False,
            notes="\n".join([*notes, *warnings]),
            force=force,
        ) as bundle:
            rows: tuple[Row, ...] = (*self.nodes.values(), *events, *self.actions)
            for row in rows:
                bundle.add(row)
