"""Import what Slurm recorded: jobs that failed (sacct), nodes that were down (sacctmgr, sinfo)."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Event, Follows
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
from torchloom_core.lab.trace.importers.hostlist import expand

_NODE_STATES = ("NODE_FAIL", "BOOT_FAIL")
_JOB_STATES = ("FAILED", "OUT_OF_MEMORY", "REQUEUED")
_NO_FAULT = (
    *("COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE", "RUNNING", "PENDING"),
    *("SUSPENDED", "REVOKED", "RESIZING", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING"),
    *("STAGE_OUT", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD", "EXPEDITING"),
)
MOST_FAULTS = 2_000_000
"""Nodes that failed, over all rows: a host list names many in a few characters."""

_STATE = re.compile(r"[A-Z_]+")
_NO_TIME = ("", "Unknown", "None", "N/A")
_SAME_NS = 900 * SECOND_NS
"""A node that goes down this close to a job's NODE_FAIL is the one that the job lost."""

_ALIASES = {"timestart": "start", "timeend": "end", "nodename": "nodelist", "hostnames": "nodelist"}
_JOBS = ("jobid", "nodelist", "state", "start", "end")
_EVENTS = ("nodelist", "start", "end", "state")
_SNAPSHOT = ("nodelist", "state", "timestamp")

Row = Mapping[str, str]


class _Lost(NamedTuple):
    """A job that lost a node: which one of ``nodes`` is not known."""

    job: str
    state: str
    nodes: tuple[str, ...]
    end_ns: int
    code: str


class _Down(NamedTuple):
    node: str
    kind: str
    start_ns: int
    end_ns: int | None
    reason: str
    user: str


def import_slurm(
    source: Path,
    out: Path,
    *,
    also: tuple[Path, ...] = (),
    zone: str = "UTC",
    name: str = "",
    progress: Progress = silent,
    force: bool = False,
) -> None:
    """Import Slurm's record of failed jobs and of nodes that were down as a bundle.

    A file is an export of sacct, of sacctmgr show event or of sinfo, with --parsable2 or bars
    between the columns; its header tells which. A node that was down is a fatal event until it
    was up again; a drain is an action. A job that ended with NODE_FAIL is a fatal event of its
    FailedNode, or of the node that went down at the time; one that FAILED follows the job.

    Parameters
    ----------
    source : Path
        File of sacct, sacctmgr show event or sinfo.
    out : Path
        Bundle to write, NAME.tltrace.
    also : tuple of Path
        Another file of the same cluster.
    zone : str
        Time zone of the times, such as Europe/Berlin; Slurm prints that of the host.
    name : str
        Name of the trace. Default: the name of OUT.

    Raises
    ------
    TraceError
        If rows break a rule: one line for each of the first, with file and row.
    """
    refuse_to_replace(out, force=force)
    reader = _Reader(zone_of(zone))
    for path in (source, *also):
        reader.read(path, progress)
    reader.errors.refuse()
    reader.finish()
    reader.found.write(
        out,
        source,
        "a row with a time",
        name=name,
        notes=["Slurm records no cause: a failed job follows the job, a node the component."],
        force=force,
    )


class _Reader:
    def __init__(self, zone: ZoneInfo) -> None:
        self.found = Found()
        self.errors = LineErrors()
        self._zone = zone
        self._lost: list[_Lost] = []
        self._lost_nodes = 0
        self._down: list[_Down] = []

    def read(self, path: Path, progress: Progress) -> None:
        """Read one export; a row that breaks a rule is an error of ``errors``."""
        columns: Sequence[str] = ()
        take: Callable[[Row], None] | None = None
        for number, line in lines_of(path, progress):
            cells = line.split("|")
            if take is None:
                columns = [_column(cell) for cell in cells]
                take = self._reader_of(columns, f"{path}:{number}")
                continue
            if len(cells) == len(columns) + 1 and not cells[-1]:  # --parsable ends with a bar
                cells.pop()
            try:
                take(_row(columns, cells))
            except TraceError as error:
                self.errors.add(path, number, str(error))
            if len(self._down) + self._lost_nodes > MOST_FAULTS:
                raise TraceError(
                    f"{path}:{number}: need at most {MOST_FAULTS} failed nodes in all, was more"
                )
        if take is None:
            raise TraceError(f"{path}: need a header, was an empty file")

    def _reader_of(self, columns: Sequence[str], place: str) -> Callable[[Row], None]:
        for needed, take in ((_JOBS, self._job), (_EVENTS, self._event), (_SNAPSHOT, self._state)):
            if set(needed) <= set(columns):
                return take
        raise TraceError(
            f"{place}: need the columns of sacct ({'|'.join(_JOBS)}), of sacctmgr show event "
            f"(nodename|timestart|timeend|state) or of sinfo ({'|'.join(_SNAPSHOT)}), was "
            f"{shown('|'.join(columns))}"
        )

    def _time(self, text: str) -> int | None:
        return None if text in _NO_TIME else time_ns(text, self._zone)

    def _job(self, row: Row) -> None:
        if "." in row["jobid"]:  # a step of a job, which has its own row
            return
        word = _STATE.match(row["state"])
        state = word[0] if word else ""
        if state not in (*_NODE_STATES, *_JOB_STATES, *_NO_FAULT):
            raise TraceError(f"need a state of a job such as NODE_FAIL, was {shown(row['state'])}")
        nodes = expand(row["nodelist"])
        start_ns, end_ns = self._time(row["start"]), self._time(row["end"])
        if start_ns is not None and end_ns is not None and end_ns < start_ns:
            raise TraceError(f"need an end after the start {row['start']}, was {row['end']!r}")
        for node in nodes:
            self.found.node(node)
        if nodes:  # a job that waits was nowhere
            self.found.saw(start_ns, end_ns)
        if state in _NO_FAULT:
            return
        if not nodes or end_ns is None:
            self.found.leave_out("failed jobs without a node or an end, left out")
            return
        code = row.get("exitcode", "")
        if state in _NODE_STATES:
            failed = expand(row.get("failednode", ""))
            lost = tuple(failed or nodes)
            self._lost_nodes += len(lost)
            self._lost.append(_Lost(row["jobid"], state, lost, end_ns, code))
        else:
            self._add(nodes[0], state, end_ns, "job", job=row["jobid"], code=code)

    def _event(self, row: Row) -> None:
        start_ns, end_ns = self._time(row["start"]), self._time(row["end"])
        if start_ns is None:
            raise TraceError("need a start, was none")
        if end_ns is not None and end_ns < start_ns:
            raise TraceError(f"need an end after the start {row['start']}, was {row['end']!r}")
        self._interval(row, start_ns, end_ns)

    def _state(self, row: Row) -> None:
        start_ns = self._time(row["timestamp"])
        if start_ns is None:  # a node without a reason
            for node in expand(row["nodelist"]):
                self.found.node(node)
            return
        self._interval(row, start_ns, None)

    def _interval(self, row: Row, start_ns: int, end_ns: int | None) -> None:
        kind = _kind_of(row["state"])
        for node in expand(row["nodelist"]):  # none in an event of the whole cluster
            self.found.node(node)
            self.found.saw(start_ns, end_ns)
            if kind:
                reason, user = row.get("reason", ""), row.get("user", "")
                self._down.append(_Down(node, kind, start_ns, end_ns, reason, user))

    def finish(self) -> None:
        """Join the intervals of each node, and give each lost job its node."""
        down_at: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(_joined(self._down), 1):
            if one.kind == "drain":
                self.found.actions.append(
                    ActionTaken(
                        id=f"drain-{number}",
                        t_event=one.start_ns,
                        t_avail=one.start_ns,
                        component=one.node,
                        kind="drain",
                        t_end=one.end_ns,
                        actor=one.user,
                        reason=one.reason,
                    )
                )
            else:
                down_at[one.node].append(one.start_ns)
                self._add(
                    *(one.node, one.kind, one.start_ns, "component"),
                    code=one.reason,
                    end_ns=one.end_ns,
                )
        for lost in self._lost:
            if any(abs(lost.end_ns - ns) <= _SAME_NS for n in lost.nodes for ns in down_at[n]):
                continue
            first = ""
            for node in lost.nodes:
                cause = self._add(
                    *(node, lost.state, lost.end_ns, "component"),
                    job=lost.job,
                    code=lost.code,
                    cause=first,
                    is_certain=len(lost.nodes) == 1,
                )
                first = first or cause

    def _add(
        self,
        node: str,
        kind: str,
        at_ns: int,
        follows: Follows,
        *,
        code: str = "",
        job: str = "",
        cause: str = "",
        end_ns: int | None = None,
        is_certain: bool = True,
    ) -> str:
        name = f"slurm-{len(self.found.events) + 1}"
        self.found.events.append(
            Event(
                id=name,
                t_event=at_ns,
                t_avail=at_ns,
                component=node,
                kind=kind.lower(),
                code=code,
                cause=cause,
                follows=follows,
                t_resolved=end_ns,
                label="certain" if is_certain else "uncertain",
                extra={"job": job} if job else {},
            )
        )
        return name


def _row(columns: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(columns):
        raise TraceError(f"need {len(columns)} cells as in the header, was {len(cells)}")
    return dict(zip(columns, cells, strict=True))


def _column(cell: str) -> str:
    name = cell.strip().lower().replace("_", "")
    return _ALIASES.get(name, name)


def _kind_of(state: str) -> str:
    """Return ``down``, ``drain``, or "" for a state in which the node is no fault of its own."""
    words = state.upper()
    if "POWER" in words or "MAINT" in words or "PLANNED" in words:
        return ""
    if "DRAIN" in words or words.startswith("DRNG"):
        return "drain"
    return "down" if "DOWN" in words or "FAIL" in words or "NOT_RESP" in words else ""


def _joined(every: Sequence[_Down]) -> list[_Down]:
    """Return the intervals, those of one node and kind that touch as one."""
    joined: list[_Down] = []
    for one in sorted(every, key=lambda down: (down.node, down.kind, down.start_ns)):
        last = joined[-1] if joined else None
        if last and (last.node, last.kind) == (one.node, one.kind) and _touch(last, one):
            open_ = last.end_ns is None or one.end_ns is None
            joined[-1] = last._replace(
                end_ns=None if open_ else max(last.end_ns or 0, one.end_ns or 0)
            )
            continue
        joined.append(one)
    return joined


def _touch(earlier: _Down, later: _Down) -> bool:
    return earlier.end_ns is None or later.start_ns <= earlier.end_ns
