"""Import GPU faults from kernel logs: the lines in which NVIDIA's driver reports an Xid."""

import re
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.floor.xids import Meaning, meaning
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.bundle.writer import refuse_to_replace
from torchloom_core.lab.trace.importers.exports import (
    Found,
    LineErrors,
    Progress,
    lines_of,
    silent,
    time_ns,
    zone_of,
)

_XID = re.compile(r"NVRM: (?:GPU\d* )?Xid \(([^)]*)\): (\d{1,4})(?:, (.*))?")
_SWITCH = re.compile(r"SXid \(([^)]*)\): (\d{1,6})(?:, (.*))?")
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")

_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) (.*)")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d(?:\.\d+)?) (.*)")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} +([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\] ")
_UPTIME = re.compile(r"(?:<\d+>)?\[ *\d+\.\d+\] ")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]*) (?:kernel|nvidia|[\w./-]+\[\d+\])[\w\[\]]*:? ")
_KERNEL = re.compile(r"([A-Za-z0-9][\w.-]*) kernel: ")
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}

_REPEATED_NS = 60 * SECOND_NS
"""The driver writes one line per process or channel; within this time they are one event."""


def import_kernel_log(
    source: Path,
    out: Path,
    *,
    node: str = "",
    year: int | None = None,
    zone: str = "UTC",
    name: str = "",
    progress: Progress = silent,
    force: bool = False,
) -> None:
    """Import GPU faults, the Xid lines of kernel logs, as a bundle.

    Reads the output of journalctl -k -o short-iso, of dmesg with --ctime or --time-format iso,
    and syslog. Whether an Xid is fatal, and what it follows, is that of NVIDIA's catalogue; SXids
    of NVSwitch state it themselves. Equal Xids of a GPU within a minute are one event.

    Parameters
    ----------
    source : Path
        Log file, or folder of them, NODE.log each.
    out : Path
        Bundle to write, NAME.tltrace.
    node : str
        Node of lines without a host name, such as dmesg's. Default in a folder: the file's name.
    year : int, optional
        Year of the first line, for a syslog without years.
    zone : str
        Time zone of times without an offset.
    name : str
        Name of the trace. Default: the name of OUT.

    Raises
    ------
    TraceError
        If there is no log, or an Xid line has no time or no node: file and line.
    """
    refuse_to_replace(out, force=force)
    if year is not None and not 1970 <= year <= 2115:
        raise ConfigError(f"--year: need a year from 1970 to 2115, was {year}")
    found, errors, place = Found(), LineErrors(), zone_of(zone)
    paths = sorted(source.glob("*.log")) if source.is_dir() else [source]
    if not paths:
        raise TraceError(f"{source}: need log files, NODE.log, was none")
    for path in paths:
        own = node or (path.stem if source.is_dir() else "")
        _Log(path, own, _Clock(place, year), found, errors).read(progress)
    errors.refuse()
    found.write(
        out,
        source,
        "a line with a time",
        name=name,
        notes=["Xids as in NVIDIA's catalogue for Ampere and newer GPUs."],
        force=force,
    )


@dataclass
class _Clock:
    """Dates lines; the year of a syslog grows when its months start over."""

    zone: ZoneInfo
    year: int | None
    month: int = 0

    def split(self, line: str) -> tuple[str | None, str]:
        """Return the time as ISO 8601, None without one, and the rest of the line."""
        if found := _ISO.match(line):
            return found[1].replace(",", "."), found[2]
        if found := _SYSLOG.match(line):
            month = _MONTHS.get(found[1], 0)
            if self.year is not None and month < self.month - 6:
                self.year += 1
            self.month = month or self.month
            year = f"{self.year:04}" if self.year is not None else "????"
            return f"{year}-{month:02}-{int(found[2]):02}T{found[3]}", found[4]
        if found := _CTIME.match(line):
            month = _MONTHS.get(found[1], 0)
            return (
                f"{found[4]}-{month:02}-{int(found[2]):02}T{found[3]}",
                line[found.end() :],
            )
        return None, line

    def ns(self, text: str | None, line: str) -> int:
        """Return the time in nanoseconds; TraceError: the rule and the value."""
        if text is None:
            hint = ": use dmesg --time-format iso" if _UPTIME.match(line) else ""
            raise TraceError(f"need a time of day before an Xid{hint}, was {shown(line)}")
        if text.startswith("????"):
            raise TraceError(f"need --year for a time without a year, was {shown(line[:15])}")
        return time_ns(text, self.zone)


class _Log:
    def __init__(
        self, path: Path, node: str, clock: _Clock, found: Found, errors: LineErrors
    ) -> None:
        self._path, self._node, self._clock = path, node, clock
        self._found, self._errors = found, errors
        self._latest: dict[tuple[str, str, str], int] = {}
        """Node, GPU and Xid to the place of its latest event."""

    def read(self, progress: Progress) -> None:
        """Add the log's Xids, hosts, first and last time."""
        last: tuple[str, str] | None = None
        for number, line in lines_of(self._path, progress):
            text, rest = self._clock.split(line)
            if text is not None:
                if last is None:
                    self._date(text, line)
                last = text, line
                if host := _KERNEL.match(rest):  # a host without a fault counts, too
                    self._found.node(host[1])
            if "Xid" not in rest:
                continue
            seen = _XID.search(rest) or _SWITCH.search(rest)
            if seen is None:
                continue
            try:
                self._add(seen, self._clock.ns(text, line), self._node_of(rest), number)
            except TraceError as error:
                self._errors.add(self._path, number, str(error))
        if last is not None:
            self._date(*last)
        if self._node:
            self._found.node(self._node)

    def _date(self, text: str, line: str) -> None:
        try:
            self._found.saw(self._clock.ns(text, line))
        except TraceError:
            return  # the line of an Xid is an error, any other does not matter

    def _node_of(self, rest: str) -> str:
        host = _HOST.match(rest)
        if host and host[1] != "kernel":
            return host[1]
        if not self._node:
            raise TraceError(f"need --node for a line without a host, was {shown(rest)}")
        return self._node

    def _add(self, seen: re.Match[str], at_ns: int, node: str, number: int) -> None:
        pci = _PCI.search(seen[1])
        gpu = pci[0].lower() if pci else seen[1]
        text = seen[3] or ""
        is_switch = seen.re is _SWITCH
        means = _of_switch(text) if is_switch else meaning(int(seen[2]), text)
        code = f"{'sxid' if is_switch else 'xid'}-{seen[2]}"
        self._found.node(node)
        at = self._latest.get((node, gpu, code))
        if at is not None:
            before = self._found.events[at]
            if abs(at_ns - before.t_event - before.extra["lasted_ns"]) <= _REPEATED_NS:
                before.extra["lines"] += 1
                before.extra["lasted_ns"] = max(at_ns - before.t_event, 0)
                return
        self._latest[node, gpu, code] = len(self._found.events)
        self._found.events.append(
            Event(
                id=f"{self._path.stem}-{number}",
                t_event=at_ns,
                t_avail=at_ns,
                component=node,
                kind=means.kind,
                code=code,
                severity="fatal" if means.fatal else "warning",
                fatal=means.fatal,
                follows=means.follows,
                extra={"gpu": gpu, "text": text[:200], "lines": 1, "lasted_ns": 0},
            )
        )


def _of_switch(text: str) -> Meaning:
    return Meaning("nvswitch_error", text.startswith("Fatal"), "fabric")
