"""Small bundles, made in a moment, and what a feed brings of them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component, Event, Row
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.wire.events import NodeFault, Tick
from torchloom_core.wire.messages import Exit, Hello

START_NS = 1_700_000_000 * SECOND_NS

NODES = (
    Component(id="r0", kind="rack"),
    Component(id="a", kind="node", parents=("r0",)),
    Component(id="a/gpu-0", kind="gpu", parents=("a",)),
    Component(id="a/gpu-1", kind="gpu", parents=("a",)),
    Component(id="b", kind="node", parents=("r0",)),
)

Sample = tuple[float, str, str, float] | tuple[float, str, str, float, bool]
"""When it came (seconds after the start), component, metric, value, and whether it is valid."""


def at(seconds: float) -> int:
    return START_NS + round(seconds * SECOND_NS)


def fault(
    t_s: float, component: str = "a", *, avail_s: float | None = None, **changes: Any
) -> Event:
    resolved_s = changes.pop("resolved_s", None)
    fields: dict[str, Any] = {
        "id": f"{component}@{t_s:g}",
        "t_event": at(t_s),
        "t_avail": at(t_s if avail_s is None else avail_s),
        "component": component,
        "kind": "xid",
        "t_resolved": None if resolved_s is None else at(resolved_s),
    }
    return Event(**{**fields, **changes})


def table(samples: Iterable[Sample]) -> pa.Table:
    rows = sorted((at(t_s), *rest) for t_s, *rest in samples)
    return pa.table(
        {
            "t_event": pa.array([row[0] for row in rows], pa.int64()),
            "t_avail": pa.array([row[0] for row in rows], pa.int64()),
            "component": pa.array([row[1] for row in rows], pa.string()),
            "metric": pa.array([row[2] for row in rows], pa.string()),
            "value": pa.array([row[3] for row in rows], pa.float64()),
            "valid": pa.array([row[4] if len(row) > 4 else True for row in rows], pa.bool_()),
        }
    )


def bundle(
    path: Path, rows: Iterable[Row], samples: Sequence[Sample] = (), *, seconds: float = 60.0
) -> Bundle:
    with BundleWriter(
        path,
        name="small",
        start_ns=START_NS,
        end_ns=at(seconds),
        source="a test",
        licence="none",
        synthetic=True,
    ) as writer:
        for row in rows:
            writer.add(row)
        if samples:
            writer.telemetry(table(samples))
    return Bundle.open(path)


def lines_of(feed: Feed) -> list[tuple[Any, ...]]:
    """Return everything but samples and ticks, as a short tuple each."""
    lines: list[tuple[Any, ...]] = []
    for ts_ns, message in feed:
        when = (ts_ns - START_NS) / SECOND_NS
        match message:
            case Hello():
                lines.append((when, "hello", message.worker, message.incarnation))
            case Exit(expected=expected):
                kind = "leaves" if expected else "fails"
                lines.append((when, kind, message.worker, message.incarnation))
            case NodeFault():
                lines.append((when, "fault", message.node, message.id))
    return lines


def samples(feed: Feed) -> list[dict[str, tuple[bool, list[float]]]]:
    """Return per tick what came of each component: whether it reported, and its values."""
    return [
        {
            worker: (bool(message.reported[row]), message.values[row].tolist())
            for row, worker in enumerate(message.workers)
        }
        for _, message in feed
        if isinstance(message, SampleTable) and message.reported is not None
    ]


def plain(feed: Feed, until_ns: int) -> list[tuple[int, str]]:
    """Return every input until a time as text that shows each bit."""
    lines = []
    for ts_ns, message in feed:
        if ts_ns > until_ns:
            break
        text = repr(message)
        if isinstance(message, SampleTable):
            values, reported = message.values, message.reported
            assert reported is not None
            text = (
                f"{message.workers} {message.metrics} {values.tobytes()!r} {reported.tobytes()!r}"
            )
        lines.append((ts_ns, text))
    return lines


def ticks(feed: Feed) -> list[int]:
    return [ts_ns for ts_ns, message in feed if isinstance(message, Tick)]


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }
