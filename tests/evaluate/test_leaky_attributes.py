"""A leaky attribute is distinguished from one that was known before."""

import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS, DAYS, DISKS, EPOCH_S, lives
from tests.evaluate.traces import HOUR_NS, event, task, writing
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.plugin import NeedLabels

START_NS = EPOCH_S * 10**9


def date(day):
    return str(np.datetime64(EPOCH_S + 86_400 * int(day), "s"))


def flagged(path, column, seed):
    """Return the flags of an attribute, made of when disks began, ended and failed, in days."""
    began, ended, failed = lives(seed)
    cells = column(np.random.default_rng(seed), began, ended, failed)
    with writing(path / f"{seed}.tltrace", START_NS, START_NS + DAYS * DAY_NS) as writer:
        for disk, cell in enumerate(cells):
            part = Component(
                id=f"d{disk:04}",
                kind="disk",
                from_ns=START_NS + int(began[disk]) * DAY_NS if began[disk] else None,
                until_ns=START_NS + (int(ended[disk]) + 1) * DAY_NS if failed[disk] else None,
                extra={} if cell is None else {"leak": cell},
            )
            writer.add(part)
        for disk in np.flatnonzero(failed).tolist():
            at_h = START_NS // HOUR_NS + 24 * (int(ended[disk]) + 1)
            writer.add(event(f"d{disk:04}", at_h, at_h + 1))
    trace, paced = Bundle.open(path / f"{seed}.tltrace"), {"tick_s": 86_400.0, "every_s": 86_400.0}
    return find_leaky_inputs(trace, [NeedLabels(("leak",))], task(7 * 24), **paced)


FUTURE = {
    "last date": lambda _, began, ended, failed: [date(day + 1) for day in ended],
    "died on": lambda _, began, ended, failed: [
        date(day + 1) if fails else None for day, fails in zip(ended, failed, strict=True)
    ],
    "length": lambda _, began, ended, failed: (ended - began + 1.0).tolist(),
    "status": lambda _, began, ended, failed: ["retired" if fails else "ok" for fails in failed],
    "reason, if it failed": lambda _, began, ended, failed: [
        "media" if fails else None for fails in failed
    ],
}
HONEST = {
    "installed": lambda random, began, ended, failed: [
        date(day - days) for day, days in zip(began, random.gamma(2, 300, DISKS), strict=True)
    ],
    "size": lambda random, began, ended, failed: random.choice([4.0, 8.0], DISKS).tolist(),
    "model": lambda random, began, ended, failed: random.choice(["x", "y", "z"], DISKS).tolist(),
    "model that fails more": lambda random, began, ended, failed: [
        "bad" if chance < (0.6 if fails else 0.2) else "good"
        for chance, fails in zip(random.random(DISKS), failed, strict=True)
    ],
    "host, two disks each": lambda random, *_: [f"h{disk // 2}" for disk in range(DISKS)],
}


@pytest.mark.parametrize("column", FUTURE.values(), ids=FUTURE)
def test_a_leaky_input_is_flagged_by_name(tmp_path, column):
    for seed in range(3):
        (flag,) = flagged(tmp_path, column, seed)
        assert flag.startswith("leaky_column: leak: ")


@pytest.mark.parametrize("column", HONEST.values(), ids=HONEST)
def test_an_input_known_before_is_not_flagged(tmp_path, column):
    for seed in range(10):
        assert flagged(tmp_path, column, seed) == ()
