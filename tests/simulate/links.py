"""Bundles with links, for test runs."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tests.evaluate.traces import writing
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import LINK_METRIC, Component
from torchloom_core.lab.trace.synthetic.parameters import START_NS

Value = tuple[float, str, float]
"""Seconds since the start, component, bytes a second."""


def write_links(
    path: Path,
    values: Sequence[Value],
    *,
    span_s: float,
    nodes: Sequence[str] = ("w0", "w1"),
    metric: str = LINK_METRIC,
    parts: Sequence[Component] = (),
) -> Bundle:
    """Write a bundle of nodes, or ``parts``, and values, which are in time order."""
    with writing(path, START_NS, START_NS + round(span_s * SECOND_NS)) as writer:
        for part in parts or [Component(id=node, kind="node") for node in nodes]:
            writer.add(part)
        if values:
            at_ns = [START_NS + round(at_s * SECOND_NS) for at_s, _, _ in values]
            writer.telemetry(
                pa.table(
                    {
                        "t_event": pa.array(at_ns, pa.int64()),
                        "t_avail": pa.array(at_ns, pa.int64()),
                        "component": [name for _, name, _ in values],
                        "metric": [metric] * len(values),
                        "value": [rate for _, _, rate in values],
                        "valid": [True] * len(values),
                    }
                )
            )
    return Bundle.open(path)
