"""Synthetic fleets: nodes that differ, racks that are hit at once, partly informative scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.forecasts.alarms import Judged
from torchloom_core.lab.evaluate.forecasts.labels import Incidents, Task, incidents, outcomes
from torchloom_core.lab.trace import Event, Watched
from torchloom_core.plugin import Floats, Ints

DAY_S = 86_400.0
DAY_NS = round(DAY_S) * SECOND_NS
REPAIR_D = 0.5
LONGEST_D = 1.0
"""How long a failure takes: half a day, or up to a day where it is to be detected."""
RACK = 10
"""Nodes of a rack."""
HIT = 0.6
"""How likely a node fails when its rack is hit."""


@dataclass(frozen=True)
class Setting:
    """The size of a fleet, and its task.

    Attributes
    ----------
    days, learned_d : int
        The length of a trace, and of the part on which thresholds are set.
    horizon_d, every_d : float
        The horizon of the task, and the time between scores.
    rate : float
        Failures of a node and day, of its own.
    hits : float
        Hits of a rack and day.
    kind : "forecast" or "detect"
        Whether a failure is predicted before it begins, or detected during it; then it takes up to
        a day, and half a day otherwise.
    """

    name: str
    nodes: int
    days: int
    learned_d: int
    horizon_d: float
    every_d: float
    rate: float
    hits: float
    kind: Literal["forecast", "detect"] = "forecast"

    @property
    def task(self) -> Task:
        """The task."""
        return Task(horizon_s=self.horizon_d * DAY_S, kind=self.kind, repair_s=DAY_S, merge_s=0.0)

    @property
    def times_ns(self) -> Ints:
        """The times of the scores."""
        times: Ints = np.arange(0, self.days, self.every_d) * DAY_NS
        return times.astype(np.int64)


SETTINGS = (
    Setting("a rack room", 120, 160, 60, 4.0, 1.0, 0.004, 0.001),
    Setting("few nodes, often asked", 40, 260, 80, 1.0, 0.25, 0.008, 0.002),
    Setting("many nodes, two weeks", 600, 110, 40, 7.0, 1.0, 0.0015, 0.0005),
    Setting("while it goes on", 40, 60, 30, 1 / 24, 1 / 24, 0.03, 0.01, "detect"),
)


@dataclass(frozen=True, eq=False)
class Fleet:
    """One draw: what failed when, and what of it could be seen.

    Attributes
    ----------
    frailty : (nodes,) float64
        How many times as often as others each node fails of its own.
    outcome : (times, nodes) float64
    incidents : Incidents
    starts : (failures,) float64
        When each failure began, days, sorted.
    """

    setting: Setting
    frailty: Floats
    outcome: Floats
    incidents: Incidents
    starts: Floats

    def judged(self, score: Floats) -> tuple[Judged, Judged]:
        """Return a score judged on the time on which thresholds are set, and on the time after."""
        setting = self.setting
        times_ns, cut_ns = setting.times_ns, setting.learned_d * DAY_NS
        parts = times_ns < cut_ns - setting.task.horizon_ns, times_ns >= cut_ns
        return tuple(  # type: ignore[return-value]
            Judged(
                setting.task,
                times_ns[part],
                setting.every_d * DAY_S,
                score[part],
                self.outcome[part],
                self.incidents,
            )
            for part in parts
        )

    def informative(self, random: np.random.Generator) -> Floats:
        """Return an informative score: the node's frailty, and a rise before some failures.

        What else it follows drifts, node by node, so that false alarms come in runs.
        """
        times_d = self.setting.times_ns / DAY_NS
        score = 0.6 * np.log(self.frailty)[None, :] + _drift(random, len(times_d), len(self))
        of = self.incidents
        for row, start_ns, end_ns in zip(of.row, of.start_ns, of.end_ns, strict=True):
            from_ns, until_ns = self.setting.task.due_ns(start_ns, end_ns)
            near = (times_d * DAY_NS >= from_ns) & (times_d * DAY_NS < until_ns)
            score[near, row] += random.exponential(1.0)
        return score

    def __len__(self) -> int:
        return len(self.frailty)


def draw(setting: Setting, seed: int) -> Fleet:
    """Return one fleet; the same for a seed."""
    random = np.random.default_rng([seed, setting.nodes])
    frailty = random.gamma(1.0, 1.0, setting.nodes)
    events = sorted(_failures(setting, frailty, random))
    lasted_d = np.full(len(events), REPAIR_D)
    if setting.kind == "detect":
        lasted_d = random.uniform(0.0, LONGEST_D, len(events))
    ids = tuple(f"n{node:05}" for node in range(setting.nodes))
    watched = Watched(
        ids=ids,
        node=ids,
        rack=("",) * setting.nodes,
        kind="node",
        gpus=(8,) * setting.nodes,
        rows={name: (row,) for row, name in enumerate(ids)},
    )
    failures = [
        Event(
            id=str(number),
            t_event=round(day * DAY_NS),
            t_avail=round(day * DAY_NS),
            t_resolved=min(round((day + lasted) * DAY_NS), setting.days * DAY_NS),
            component=ids[node],
            kind="crash",
        )
        for number, ((day, node), lasted) in enumerate(zip(events, lasted_d, strict=True))
    ]
    end_ns = setting.days * DAY_NS
    came = outcomes(
        failures,
        (),
        watched,
        setting.times_ns,
        setting.task,
        known_until_ns=end_ns,
        span=(0, end_ns),
    )
    found = incidents(failures, watched, setting.task, known_until_ns=end_ns)
    return Fleet(setting, frailty, came, found, np.array([day for day, _ in events]))


def _failures(
    setting: Setting, frailty: Floats, random: np.random.Generator
) -> Iterator[tuple[float, int]]:
    for node, count in enumerate(random.poisson(setting.rate * frailty * setting.days)):
        yield from ((float(day), node) for day in random.uniform(0, setting.days, count))
    for rack in range(setting.nodes // RACK):
        for day in random.uniform(0, setting.days, random.poisson(setting.hits * setting.days)):
            for node in np.flatnonzero(random.random(RACK) < HIT) + RACK * rack:
                yield float(day), int(node)


def _drift(random: np.random.Generator, times: int, nodes: int, memory: float = 0.8) -> Floats:
    """Return ``(times, nodes)`` of a first-order autoregression with variance 1."""
    from scipy.signal import lfilter

    own = random.normal(size=(times, nodes)) * np.sqrt(1.0 - memory**2)
    own[0] /= np.sqrt(1.0 - memory**2)
    drift: Floats = lfilter([1.0], [1.0, -memory], own, axis=0)
    return drift
