"""Small traces in memory, for tests: components are named a, b, c ..., times are hours."""

import numpy as np
import pyarrow as pa

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.forecasts.alarms import Judged
from torchloom_core.lab.evaluate.forecasts.labels import Task, incidents, outcomes
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Component, Event
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.feed.watched import Watched

HOUR_S = 3600.0
HOUR_NS = 3600 * SECOND_NS
FOREVER_NS = 10**9 * SECOND_NS


def watched(count):
    ids = tuple(f"n{number:05}" for number in range(count))
    return Watched(
        ids=ids,
        node=ids,
        rack=("",) * count,
        kind="node",
        gpus=(8,) * count,
        rows={name: (row,) for row, name in enumerate(ids)} | {"rack": tuple(range(count))},
    )


def event(component, at_h, until_h=None, *, known_h=None, **more):
    return Event(
        id=more.pop("id", f"{component}@{at_h}"),
        t_event=round(at_h * HOUR_NS),
        t_avail=round((at_h if known_h is None else known_h) * HOUR_NS),
        t_resolved=None if until_h is None else round(until_h * HOUR_NS),
        component=component,
        kind=more.pop("kind", "crash"),
        **more,
    )


def drain(component, at_h, until_h=None, kind="drain"):
    return ActionTaken(
        id=f"{component}@{at_h}",
        t_event=round(at_h * HOUR_NS),
        t_avail=round(at_h * HOUR_NS),
        t_end=None if until_h is None else round(until_h * HOUR_NS),
        component=component,
        kind=kind,
    )


def hours(count, every_h=1):
    return np.arange(0, count, every_h, dtype=np.int64) * HOUR_NS


def task(horizon_h, **more):
    return Task(
        **{"horizon_s": horizon_h * HOUR_S, "repair_s": 24 * HOUR_S, "merge_s": 0.0, **more}
    )


def judge(score, events, of, *, span_h=None, times_ns=None, actions=()):
    """Return the score of hourly moments with what the events make of them."""
    score = np.asarray(score, dtype=float)
    fleet = watched(score.shape[1])
    times_ns = hours(len(score)) if times_ns is None else times_ns
    end_ns = int(times_ns[-1]) + of.horizon_ns if span_h is None else span_h * HOUR_NS
    came = outcomes(
        events,
        actions,
        fleet,
        times_ns,
        of,
        known_until_ns=FOREVER_NS,
        span=(0, end_ns),
    )
    every_s = float(times_ns[1] - times_ns[0]) / SECOND_NS
    return Judged(
        of, times_ns, every_s, score, came, incidents(events, fleet, of, known_until_ns=FOREVER_NS)
    )


def writing(path, start_ns, end_ns, **more):
    """Return the writer of a bundle."""
    made_up = {"name": path.stem, "source": "made up", "licence": "CC0-1.0", "synthetic": True}
    return BundleWriter(path, start_ns=start_ns, end_ns=end_ns, **{**made_up, **more})


def write_bundle(
    path, *, days=120, nodes=20, rate=0.01, seed=0, metrics=None, delay_h=0, kind="node"
):
    """Write a trace of nodes that fail at random; return it and its failures.

    Half of the failures are on a tenth of the nodes; each is available ``delay_h`` later.
    ``metrics`` maps a name to a function of the failures, ``(days, nodes)``, that gives its daily
    values.
    """
    random = np.random.default_rng(seed)
    chance = np.where(np.arange(nodes) < max(1, nodes // 10), 5.5 * rate, 0.55 * rate)
    failed = random.random((days, nodes)) < chance
    ids = watched(nodes).ids
    with writing(path, 0, days * 24 * HOUR_NS) as writer:
        for name in ids:
            writer.add(Component(id=name, kind=kind))
        for day, node in np.argwhere(failed):
            at_h = 24 * int(day) + 12
            known_h = min(at_h + delay_h, 24 * days)
            writer.add(event(ids[node], at_h, at_h + 6, known_h=known_h))
        if metrics:
            writer.telemetry(_telemetry(ids, failed, metrics))
    return Bundle.open(path), failed


def _telemetry(ids, failed, metrics):
    days, nodes = failed.shape
    names = sorted(metrics)
    values = np.stack([metrics[name](failed) for name in names], axis=2)
    at = np.repeat(np.arange(days, dtype=np.int64) * 24 * HOUR_NS, nodes * len(names))
    return pa.table(
        {
            "t_event": at,
            "t_avail": at,
            "component": np.tile(np.repeat(np.array(ids), len(names)), days),
            "metric": np.tile(np.array(names), days * nodes),
            "value": values.ravel(),
            "valid": np.ones(len(at), dtype=bool),
        }
    )
