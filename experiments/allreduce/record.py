"""Schedules as trace bundles of the metric ``link_bytes_per_s``, and back.

    python experiments/allreduce/record.py changing.tltrace [--schedule changing] [--seed 1]

``torchloom evaluate`` simulates a policy on such a bundle, and ``run.py --trace`` plays it in the
lab. A link whose two directions differ is recorded by the slower one.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from experiments.allreduce import schedule
from experiments.allreduce.schedule import Schedule, least_mbit
from torchloom_core.demos.bandwidth.namespaces import Rate
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.lab.trace import Bundle, BundleWriter, Component, Job, Placement

METRIC = "link_bytes_per_s"
INTERVAL_S = 1.0
UNSHAPED_MBIT = 10_000.0
"""Rate of an unshaped link in a trace: about the machine's own."""

START_NS = 1_700_000_000 * SECOND_NS
_BYTES_PER_MBIT = 1e6 / 8


def write_bundle(planned: Schedule, path: Path, *, force: bool = False) -> None:
    """Write the rate of each rank's link, once a second, as telemetry of node ``node-<rank>``."""
    ranks, end_s = len(planned[0].rates), planned[-1].end_s
    end_ns = START_NS + round(end_s * SECOND_NS)
    nodes = [f"node-{rank}" for rank in range(ranks)]
    with BundleWriter(
        path,
        name=path.name.removesuffix(".tltrace"),
        start_ns=START_NS,
        end_ns=end_ns,
        source="experiments/allreduce, a schedule of the lab",
        licence="Apache-2.0",
        synthetic=True,
        force=force,
    ) as writer:
        writer.add(Job(id="lab", start_ns=START_NS, end_ns=end_ns, groups=ranks, gpus_per_node=1))
        for rank, node in enumerate(nodes):
            writer.add(Component(id=node, kind="node", gpus=1))
            writer.add(
                Placement(job="lab", group=f"g{rank}", rank=0, component=node, from_ns=START_NS)
            )
        columns: dict[str, list[object]] = {name: [] for name in _TYPES}
        for number in range(int(end_s / INTERVAL_S)):
            now_s = number * INTERVAL_S
            phase = next(each for each in planned if now_s < each.end_s)
            at = START_NS + round(now_s * SECOND_NS)
            for node, rate in zip(nodes, phase.rates, strict=True):
                carried = min(least_mbit(rate), UNSHAPED_MBIT) * _BYTES_PER_MBIT
                row = (at, at, node, METRIC, carried, True)
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)
        writer.telemetry(pa.table(columns, schema=pa.schema(_TYPES.items())))


_TYPES = {
    "t_event": pa.int64(),
    "t_avail": pa.int64(),
    "component": pa.string(),
    "metric": pa.string(),
    "value": pa.float64(),
    "valid": pa.bool_(),
}


def recorded(path: Path, ranks: int) -> Schedule:
    """Return the ``link_bytes_per_s`` of a trace's first components, one a rank.

    Raises
    ------
    ValueError
        If it has too few of them.
    """
    bundle = Bundle.open(path)
    series: dict[str, dict[int, float]] = {}
    for table in bundle.telemetry(metrics=[METRIC]):
        named = (table.column(name).to_pylist() for name in _TYPES)
        for at, _, component, _, value, valid in zip(*named, strict=True):
            if valid and value > 0:
                series.setdefault(component, {})[at] = value
    if len(series) < ranks:
        raise ValueError(f"{path}: need {METRIC} of {ranks} components, was {len(series)}")
    chosen = [series[name] for name in sorted(series)[:ranks]]
    now = [one[min(one)] for one in chosen]
    times = sorted({at for one in chosen for at in one})
    spans: list[tuple[float, tuple[Rate, ...]]] = []
    for at, until in zip(times, [*times[1:], bundle.manifest.end_ns], strict=True):
        now = [one.get(at, value) for one, value in zip(chosen, now, strict=True)]
        rates = tuple(_rate(value) for value in now)
        lasts_s = (until - at) / SECOND_NS
        if spans and spans[-1][1] == rates:
            lasts_s += spans.pop()[0]
        spans.append((lasts_s, rates))
    return schedule.phases(spans)


def _rate(carried: float) -> Rate:
    mbit = carried / _BYTES_PER_MBIT
    return Rate.both(None if mbit >= UNSHAPED_MBIT else mbit)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the bundle to write, NAME.tltrace")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    schedule.add_options(parser)
    args = parser.parse_args(argv)
    try:
        write_bundle(schedule.of_options(args), args.path, force=args.force)
    except TorchloomError as error:
        print(error, file=sys.stderr)
        return 2
    print(args.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
