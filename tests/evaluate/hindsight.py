"""Synthetic fleets, and leaky columns that are added to them in hindsight."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tests.evaluate.traces import writing
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.needs import Need, NeedFaults, NeedLabels, NeedPast, labels_read
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component, Event
from torchloom_core.lab.trace.feed.watched import watch

DAY_NS = 86_400 * SECOND_NS
START_NS = 20_000 * DAY_NS
DAYS, HORIZON_D = 120, 7
TASK = Task(horizon_s=HORIZON_D * 86_400.0, repair_s=86_400.0)
SEEDS = range(20)


@dataclass
class Fleet:
    """Components that came, failed and were there no more, or were repaired, in days.

    Attributes
    ----------
    at, of : (rows,) int64
        Day and component of each row of telemetry.
    failures : list of (float, int)
        When, and whose.
    notes : list of (float, int, str)
        Events that are no failure, with their kind.
    """

    random: np.random.Generator
    came: np.ndarray
    ended: np.ndarray
    failed: np.ndarray
    failures: list
    metrics: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    rack: np.ndarray | None = None
    notes: list = field(default_factory=list)

    def __post_init__(self):
        day = np.arange(DAYS)[:, None]
        there = (day >= self.came) & (day < np.fmax(self.ended, self.came + 1))
        self.at, self.of = np.nonzero(there)

    def __len__(self):
        return len(self.came)

    def write(self, path):
        ids = np.array([f"c{number:04}" for number in range(len(self))])
        with writing(path, START_NS, START_NS + DAYS * DAY_NS) as writer:
            racks = [] if self.rack is None else [f"r{number}" for number in self.rack]
            for name in dict.fromkeys(racks):
                writer.add(Component(id=name, kind="rack"))
            for row, name in enumerate(ids.tolist()):
                rows = {what: cells[row] for what, cells in self.attributes.items()}
                parents = (racks[row],) if racks else ()
                writer.add(Component(id=name, kind="disk", parents=parents, extra=rows))
            rows = [(day, row, "broke") for day, row in self.failures] + self.notes
            for number, (day, row, kind) in enumerate(rows):
                at_ns = START_NS + round(day * DAY_NS)
                fate = {"kind": kind, "fatal": kind == "broke", "t_resolved": at_ns + DAY_NS // 4}
                times = {"t_event": at_ns, "t_avail": at_ns}
                writer.add(Event(id=str(number), component=str(ids[row]), **times, **fate))
            if self.metrics:
                writer.telemetry(self._table(ids))
        return Bundle.open(path)

    def _table(self, ids):
        values = np.stack([*self.metrics.values()], axis=1)
        at_ns = np.repeat(START_NS + self.at * DAY_NS, len(self.metrics))
        table = pa.table(
            {
                "t_event": at_ns,
                "t_avail": at_ns,
                "component": np.repeat(ids[self.of], len(self.metrics)),
                "metric": np.tile(np.array([*self.metrics]), len(self.at)),
                "value": values.ravel(),
                "valid": np.ones(values.size, dtype=bool),
            }
        )
        return table.filter(~np.isnan(values.ravel()))


def needs_of(bundle):
    """Return the needs of a predictor that reads everything."""
    labels = watch(bundle).labels
    metrics = tuple(Need(metric) for metric in bundle.metrics)
    named = NeedLabels((*labels.numbers, *labels.words))
    needs = (*metrics, NeedPast(bundle.metrics), named, NeedFaults(30 * 86_400.0))
    assert labels_read(needs) == named.names
    return needs


def disks(seed, count=150):
    """Return disks that are gone once they failed: of models, lots and racks that differ.

    Some come later; new ones fail up to ten times as often; a rack loses its power, or goes down
    bit by bit. Some metrics rise before some failures, others are noise.
    """
    random = np.random.default_rng(seed)
    later = random.random(count) < random.choice([0.0, 0.3, 0.7])
    came = np.where(later, random.integers(0, 90, count), 0)
    model, rack = random.integers(0, 4, count), random.integers(0, count // 10, count)
    frailty = random.gamma(1.0, 1.0, count)
    hazard = 0.004 * frailty * np.where(model == 3, 4.0, 1.0)
    hazard *= random.gamma(1.0, 1.0, count // 10)[rack]
    day = np.arange(DAYS)[:, None]
    age = np.where(came == 0, random.integers(30, 1000, count), 0) + day - came
    dies = random.random((DAYS, count)) < hazard * np.where(age < 30, random.choice([1, 3, 10]), 1)
    for hit in random.choice(count // 10, 3, replace=False):
        dies[random.integers(10, 110), rack == hit] = True
    (slow,) = random.choice(count // 10, 1)
    dies[40:70, rack == slow] |= random.random((30, int((rack == slow).sum()))) < 0.1
    dies &= day > came
    failed = dies.any(axis=0)
    ended = np.where(failed, dies.argmax(axis=0), DAYS)
    failures = [(float(ended[row]), row) for row in np.flatnonzero(failed)]
    fleet = Fleet(random, came, ended, failed, failures, rack=rack)
    at, of = fleet.at, fleet.of
    near = failed[of] & (ended[of] - at <= 5) & (random.random(count) < 0.6)[of]
    errors = np.zeros((DAYS, count))
    errors[at, of] = random.poisson(0.02 * frailty[of] + 2.0 * near)
    errors = errors.cumsum(axis=0)[at, of]
    fleet.metrics = {
        "temperature": random.normal(40, 3, len(at)),
        "hours": 24.0 * age[at, of],
        "came_on": 1.0 * came[of],
        "errors": errors,
        "errors_once_there_are": np.where(errors > 0, errors, np.nan),
        "written": (at - came[of]) * random.gamma(2.0, 1.0, count)[of],
        "wear": frailty[of] * (at - came[of]) + random.normal(0, 2, len(at)),
        "of_one_model": np.where(model[of] == 3, random.normal(0, 1, len(at)), np.nan),
    }
    fleet.attributes = {
        "model": [f"m{number}" for number in model],
        "host": [f"h{row // 2}" for row in range(count)],
        "size": np.where(model % 2, 4.0, 8.0).tolist(),
        "age": age[0].astype(float).tolist(),
        "serial": random.random(count).tolist(),
    }
    warned = np.flatnonzero(failed & (random.random(count) < 0.7))
    fleet.notes = [(ended[row] - random.uniform(0, 6), row, "warning") for row in warned]
    fleet.notes += [(0.0, row, "warning") for row in np.flatnonzero(random.random(count) < 0.2)]
    fleet.notes += [(ended[row] - 0.2, row, "last words") for row in np.flatnonzero(failed)]
    inlet = random.normal(25, 5, len(at))
    fleet.metrics |= {
        "inlet": inlet,
        "outlet": inlet + 8 + 2.0 * near + random.normal(0, 1, len(at)),
    }
    for row, often in enumerate(random.poisson(1 + 2 * np.fmin(frailty, 3))):
        days = random.uniform(came[row], max(ended[row], came[row] + 1), often)
        fleet.notes += [(day, row, "retry") for day in days.tolist()]
        fleet.notes += [(ended[row] - left, row, "retry") for left in range(1, 4) if failed[row]]
    fleet.notes = [(day, row, kind) for day, row, kind in fleet.notes if day >= came[row]]
    return fleet


def nodes(seed, count=60):
    """Return nodes of which nearly all fail at some time, some of them often, and come back."""
    random = np.random.default_rng([seed, 1])
    rate = random.gamma(0.8, 0.05, count) + 0.012
    failures = [
        (float(day), row)
        for row in range(count)
        for day in np.sort(random.uniform(1, DAYS - 1, max(1, random.poisson(DAYS * rate[row]))))
    ]
    came, ended = np.zeros(count, dtype=np.int64), np.full(count, DAYS)
    fleet = Fleet(random, came, ended, np.ones(count, dtype=bool), failures)
    fleet.metrics = {"temperature": random.normal(40, 3, len(fleet.at))}
    fleet.attributes = {
        "rate": rate.tolist(),
        "before": random.poisson(100 * rate).astype(float).tolist(),
        "size": random.choice([4.0, 8.0], count).tolist(),
    }
    return fleet
