"""A trace of disks that end at their failure, with leaky columns and honest ones."""

import numpy as np
import pyarrow as pa

from tests.evaluate.traces import HOUR_NS, event, writing
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component

DAY_NS = 24 * HOUR_NS
DAYS, DISKS = 120, 150
EPOCH_S = 1_400_000_000


def lives(seed, count=DISKS, rate=0.004):
    """Return when each disk comes, when its last row is, and whether it failed then, in days."""
    random = np.random.default_rng(seed)
    began = np.where(random.random(count) < 0.6, 0, random.integers(0, 60, count))
    life = random.geometric(rate, count)
    ended = np.minimum(began + life, DAYS - 1)
    return began, ended, began + life < DAYS


def columns(seed, **fleet):
    """Return columns by name, ``(days, disks)``: leaky ones, and honest ones."""
    random = np.random.default_rng([seed, 1])
    began, ended, failed = lives(seed, **fleet)
    count = len(began)
    day = np.arange(DAYS)[:, None]
    size = (DAYS, count)
    length = ended - began + 1
    rank = np.argsort(np.argsort(length + 0.01 * random.random(count)))
    age = random.gamma(2.0, 300.0, count)
    future = {
        "last_date": EPOCH_S + 86_400.0 * np.broadcast_to(ended, size),
        "last_day": 1.0 * np.broadcast_to(ended, size),
        "length": 1.0 * np.broadcast_to(length, size),
        "records": np.broadcast_to(length + random.normal(0, 2, count), size),
        "rank_of_length": 1.0 * np.broadcast_to(rank, size),
        "age_when_it_goes": np.broadcast_to(age + length, size),
        "days_left": 1.0 * (ended - day),
        "share_of_life": (day - began + 1) / length,
        "fails": 1.0 * np.broadcast_to(failed, size),
    }
    before_end = np.maximum(0.0, 10.0 - (ended - day)) * failed
    honest = {
        "age_when_it_came": np.broadcast_to(age, size),
        "hours": 24.0 * (age + day - began),
        "came_on": 1.0 * np.broadcast_to(began, size),
        "came_at": EPOCH_S + 86_400.0 * np.broadcast_to(began, size),
        "model": 1.0 * np.broadcast_to(random.integers(0, 5, count), size),
        "wear": before_end + random.normal(0, 4, size),
        "temperature": random.normal(30, 5, size),
        "serial": np.broadcast_to(random.random(count), size),
    }
    return future, honest


def bundle_of(path, seed, disks=DISKS, rate=0.004):
    fleet = {"count": disks, "rate": rate}
    began, ended, failed = lives(seed, **fleet)
    future, honest = columns(seed, **fleet)
    values = {**future, **honest}
    ids = [f"d{number:04}" for number in range(disks)]
    start_ns = EPOCH_S * 10**9
    with writing(path, start_ns, start_ns + DAYS * DAY_NS) as writer:
        for name in ids:
            writer.add(Component(id=name, kind="disk"))
        for disk in np.flatnonzero(failed):
            at_h = start_ns // HOUR_NS + 24 * (int(ended[disk]) + 1)
            writer.add(event(ids[disk], at_h, at_h + 1))
        there = (np.arange(DAYS)[:, None] >= began) & (np.arange(DAYS)[:, None] <= ended)
        day, disk = np.nonzero(there)
        names = sorted(values)
        at_ns = np.repeat(start_ns + day * DAY_NS, len(names))
        table = {
            "t_event": at_ns,
            "t_avail": at_ns,
            "component": np.repeat(np.array(ids)[disk], len(names)),
            "metric": np.tile(np.array(names), len(day)),
            "value": np.stack([values[name][day, disk] for name in names], axis=1).ravel(),
            "valid": np.ones(len(at_ns), dtype=bool),
        }
        writer.telemetry(pa.table(table))
    return Bundle.open(path), failed
