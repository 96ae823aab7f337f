"""The fleet's metrics: workers and groups by role and state, and series per group if wanted."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from prometheus_client.core import GaugeMetricFamily, Metric

from torchloom_core.config.monitoring import Metrics
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.state import FleetState

_WORST = {
    state: rank
    for rank, state in enumerate(
        ("unreachable", "joining", "paused", "draining", "standby", "training", "left", "gone")
    )
}
"""The state of a group is that of its worker that is first here."""


def fleet_metrics(fleet: FleetState, now_ns: int, settings: Metrics | None) -> Iterator[Metric]:
    """Yield the fleet's metrics."""
    count = len(fleet.hello)
    states = list(fleet.state)
    for row in np.flatnonzero(fleet.times.seen_ns[:count] < now_ns - fleet.times.stale_ns):
        if states[row] not in ("left", "gone"):
            states[row] = "unreachable"
    group_state: dict[tuple[str, str], str] = {}
    for hello, state in zip(fleet.hello, states, strict=True):
        key = hello.role, hello.group
        before = group_state.get(key, "gone")
        group_state[key] = min(before, state, key=lambda s: _WORST.get(s, 0))
    workers = Counter(zip((hello.role for hello in fleet.hello), states, strict=True))
    groups = Counter((role, state) for (role, _), state in group_state.items())
    for name, text, counted in (
        ("workers", "Workers by state", workers),
        ("groups", "Replica groups by the state of their worst worker", groups),
    ):
        metric = GaugeMetricFamily(f"torchloom_{name}", text, labels=["role", "state"])
        for labels, number in counted.items():
            metric.add_metric(labels, number)
        yield metric
    if settings is not None and settings.series != "run":
        yield from _by_group(fleet, states)
    if settings is not None and settings.series == "worker":
        yield from _by_worker(fleet, states, now_ns)


def _by_group(fleet: FleetState, states: list[str]) -> Iterator[Metric]:
    steps: dict[str, int] = {}
    here: Counter[str] = Counter()
    for row, hello in enumerate(fleet.hello):
        if states[row] not in ("left", "gone"):
            here[hello.group] += 1
            steps[hello.group] = max(steps.get(hello.group, -1), int(fleet.times.step[row]))
    step = GaugeMetricFamily("torchloom_group_step", "Last finished step", labels=["group"])
    present = GaugeMetricFamily("torchloom_group_workers", "Workers present", labels=["group"])
    for group, number in here.items():
        present.add_metric([group], number)
        step.add_metric([group], steps[group])
    yield present
    yield step


def _by_worker(fleet: FleetState, states: list[str], now_ns: int) -> Iterator[Metric]:
    labels = ["worker", "group", "node"]
    step = GaugeMetricFamily("torchloom_worker_step", "Last finished step", labels=labels)
    age = GaugeMetricFamily(
        "torchloom_worker_heartbeat_age_seconds", "Time since its last message", labels=labels
    )
    for row, hello in enumerate(fleet.hello):
        if states[row] not in ("left", "gone"):
            of = [hello.worker, hello.group, hello.node]
            step.add_metric(of, int(fleet.times.step[row]))
            age.add_metric(of, (now_ns - int(fleet.times.seen_ns[row])) / SECOND_NS)
    yield step
    yield age
