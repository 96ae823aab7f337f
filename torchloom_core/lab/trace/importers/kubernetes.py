"""Import node conditions and events of Kubernetes, as kubectl prints them."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Event, Follows
from torchloom_core.lab.trace.bundle.writer import refuse_to_replace
from torchloom_core.lab.trace.importers.exports import (
    Found,
    LineErrors,
    Progress,
    lines_of,
    nanoseconds,
    silent,
)
from torchloom_core.wire.codec import UNREADABLE

_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_BEGINS, _ENDS = "NodeNotReady", "NodeReady"
_CORDONED, _FREED = "NodeNotSchedulable", "NodeSchedulable"
_FATAL = {"Rebooted": "rebooted", "Shutdown": "shutdown"}
_POD = {"Evicted": "evicted", "OOMKilling": "oom_kill", "Preempting": "preempted"}
_NO_FAULT = re.compile(r"Ready|.*(?:Healthy|Available|Running)")
_LIST = b"{"
"""The first line of what kubectl prints indented."""
_MOST_BYTES = 2 << 30


class _Meta(msgspec.Struct, kw_only=True, rename="camel"):
    name: str = ""
    creation_timestamp: datetime | None = None


class _Condition(msgspec.Struct, kw_only=True, rename="camel"):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None


class _Status(msgspec.Struct, kw_only=True, rename="camel"):
    conditions: list[_Condition] | None = None
    capacity: dict[str, Any] | None = None


class _Taint(msgspec.Struct, kw_only=True, rename="camel"):
    key: str = ""
    time_added: datetime | None = None


class _Spec(msgspec.Struct, kw_only=True, rename="camel"):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _Of(msgspec.Struct, kw_only=True, rename="camel"):
    kind: str = ""
    name: str = ""


class _Source(msgspec.Struct, kw_only=True, rename="camel"):
    component: str | None = None
    host: str | None = None


class _Item(msgspec.Struct, kw_only=True, rename="camel"):
    """A Node, an Event of v1 or of events.k8s.io, or a List of these."""

    kind: str = ""
    items: list[msgspec.Raw] | None = None
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec | None = None
    status: _Status | None = None
    involved_object: _Of | None = None
    regarding: _Of | None = None
    source: _Source | None = None
    deprecated_source: _Source | None = None
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    note: str | None = None
    count: int | None = None
    event_time: datetime | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    deprecated_first_timestamp: datetime | None = None
    deprecated_last_timestamp: datetime | None = None


_item = msgspec.json.Decoder(_Item)


def import_kubernetes(
    source: Path,
    out: Path,
    *,
    also: tuple[Path, ...] = (),
    name: str = "",
    progress: Progress = silent,
    force: bool = False,
) -> None:
    """Import node conditions and events of Kubernetes as a bundle.

    A file is the output of kubectl get nodes -o json or kubectl get events -o json, or has one
    such object per line. A node that is not Ready is a fatal event until it is; other
    conditions, such as those of the node problem detector, are events that are not fatal; a
    cordon is an action. List the nodes, too: those without a fault are in no event.

    Parameters
    ----------
    source : Path
        File of nodes or events.
    out : Path
        Bundle to write, NAME.tltrace.
    also : tuple of Path
        Another file of the same cluster.
    name : str
        Name of the trace. Default: the name of OUT.

    Raises
    ------
    TraceError
        If an object breaks a rule: its file and line, or its number in the list.
    """
    refuse_to_replace(out, force=force)
    reader = _Reader()
    for path in (source, *also):
        reader.read(path, progress)
    reader.errors.refuse()
    reader.finish()
    notes = ["Kubernetes keeps events for an hour by default, and of a condition only the last."]
    reader.found.write(
        out, source, "a node or an event with a time", name=name, notes=notes, force=force
    )


class _Reader:
    def __init__(self) -> None:
        self.found = Found()
        self.errors = LineErrors()
        self._turns: list[tuple[int, str, str, str]] = []
        """Time, node, reason and text of what begins or ends a time."""

    def read(self, path: Path, progress: Progress) -> None:
        """Read one file; an object that breaks a rule is an error of ``errors``."""
        for place, text in _objects(path, progress):
            try:
                item = _item.decode(text)
                raw = [text] if item.items is None else item.items
            except UNREADABLE as error:
                self.errors.add(path, place, f"need an object of Kubernetes: {error}")
                continue
            for number, one in enumerate(raw):
                try:
                    self._take(item if item.items is None else _item.decode(one))
                except (TraceError, *UNREADABLE) as error:
                    at = "" if item.items is None else f"items[{number}]: "
                    self.errors.add(path, place, f"{at}{error}")

    def _take(self, item: _Item) -> None:
        if item.kind == "Node":
            self._node(item)
        elif item.kind == "Event":
            self._event(item)
        else:
            raise TraceError(f"need a Node or an Event, was {shown(item.kind)}")

    def _node(self, item: _Item) -> None:
        node, status, spec = item.metadata.name, item.status or _Status(), item.spec or _Spec()
        if not node:
            raise TraceError("need a node with a name, was none")
        capacity = status.capacity or {}
        gpus = [str(capacity[key]) for key in _GPUS if key in capacity]
        self.found.node(node, sum(int(text) for text in gpus if text.isdecimal()))
        for taint in spec.taints or ():
            if taint.key == "node.kubernetes.io/unschedulable" and taint.time_added:
                self._turns.append((_ns(taint.time_added), node, _CORDONED, ""))
        for one in status.conditions or ():
            self._condition(node, one)

    def _condition(self, node: str, one: _Condition) -> None:
        if one.status not in ("True", "False", "Unknown"):
            raise TraceError(f"need a status True, False or Unknown, was {shown(one.status)}")
        for when in (one.last_transition_time, one.last_heartbeat_time):
            self.found.saw(_ns(when) if when else None)
        if one.last_transition_time is None:
            return
        at_ns, text = _ns(one.last_transition_time), one.reason or ""
        if one.type == "Ready":
            self._turns.append((at_ns, node, _ENDS if one.status == "True" else _BEGINS, text))
        elif one.status == "True" and not _NO_FAULT.fullmatch(one.type):
            self._add(node, one.type, at_ns, code=text, text=one.message or "", is_fatal=False)

    def _event(self, item: _Item) -> None:
        about, reason = item.involved_object or item.regarding or _Of(), item.reason or ""
        source = item.source or item.deprecated_source or _Source()
        times = [
            item.first_timestamp or item.deprecated_first_timestamp or item.event_time,
            item.last_timestamp or item.deprecated_last_timestamp,
        ]
        moments = sorted({_ns(when) for when in times if when})
        if not moments and item.metadata.creation_timestamp:
            moments = [_ns(item.metadata.creation_timestamp)]
        if not moments:
            raise TraceError("need an event with a time, was none")
        self.found.saw(*moments)
        text = item.message or item.note or ""
        if about.kind == "Pod":
            if reason in _POD and source.host:
                self._add(source.host, _POD[reason], moments[0], text=text, pod=about.name)
            elif reason in _POD:
                self.found.leave_out("events of pods without a host, left out")
            return
        if about.kind != "Node":
            return
        if not about.name:
            raise TraceError("need an event of a node with a name, was none")
        self.found.node(about.name)
        for at_ns in moments:
            if reason in (_BEGINS, _ENDS, _CORDONED, _FREED):
                self._turns.append((at_ns, about.name, reason, text))
            elif reason in _FATAL:
                self._add(about.name, _FATAL[reason], at_ns, text=text)
            elif item.type == "Warning":
                self._add(about.name, reason or "warning", at_ns, text=text, is_fatal=False)

    def finish(self) -> None:
        """Join what begins and what ends a time without the node."""
        begun: dict[tuple[str, str], tuple[int, str]] = {}
        for at_ns, node, reason, text in sorted(self._turns):
            kind = "not_ready" if reason in (_BEGINS, _ENDS) else "cordon"
            if reason in (_BEGINS, _CORDONED):
                begun.setdefault((node, kind), (at_ns, text))
            elif start := begun.pop((node, kind), None):
                self._absent(node, kind, start, at_ns)
        for (node, kind), start in begun.items():
            self._absent(node, kind, start, None)

    def _absent(self, node: str, kind: str, start: tuple[int, str], end_ns: int | None) -> None:
        at_ns, text = start
        if kind == "not_ready":
            self._add(node, kind, at_ns, text=text, end_ns=end_ns)
            return
        number = len(self.found.actions) + 1
        self.found.actions.append(
            ActionTaken(
                id=f"cordon-{number}",
                t_event=at_ns,
                t_avail=at_ns,
                component=node,
                kind="drain",
                t_end=end_ns,
                reason=text,
            )
        )

    def _add(
        self,
        node: str,
        kind: str,
        at_ns: int,
        *,
        code: str = "",
        text: str = "",
        pod: str = "",
        end_ns: int | None = None,
        is_fatal: bool = True,
    ) -> None:
        follows: Follows = "unknown" if pod else "component"
        self.found.node(node)
        self.found.events.append(
            Event(
                id=f"kubernetes-{len(self.found.events) + 1}",
                t_event=at_ns,
                t_avail=at_ns,
                component=node,
                kind=kind,
                code=code,
                fatal=is_fatal,
                follows=follows,
                t_resolved=end_ns,
                extra={"text": text[:200], **({"pod": pod} if pod else {})},
            )
        )


def _ns(when: datetime) -> int:
    return nanoseconds(when if when.tzinfo else when.replace(tzinfo=UTC))


def _objects(path: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Yield JSON objects with their first lines: the file's one, or one of each line."""
    try:
        with open_regular(path) as file:
            head = file.readline(1 << 20)
            if head.strip() != _LIST:
                whole = None
            elif path.stat().st_size > _MOST_BYTES:
                raise TraceError(f"{path}: need at most 2 GiB, or one object per line, was more")
            else:
                whole = head + file.read()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if whole is not None:
        yield 1, whole
        return
    lines: Iterable[tuple[int, str]] = lines_of(path, progress)
    for number, line in lines:
        yield number, line.encode()
