"""A leaky attribute is distinguished from one that was known before."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS, DAYS, DISKS, EPOCH_S, lives
from torchloom_core.lab.evaluate.forecasts.failure_history import FailureHistory
from torchloom_core.lab.evaluate.forecasts.leaky_attributes import GROUP, leaky_attributes
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.feed.watched import watch

START_NS = EPOCH_S * 10**9


def date(day):
    return str(np.datetime64(EPOCH_S + 86_400 * int(day), "s"))


def flagged(path, column, seed):
    """Return the flags of an attribute, made of when disks began, ended and failed, in days."""
    began, ended, failed = lives(seed)
    cells = column(np.random.default_rng(seed), began, ended, failed)
    with BundleWriter(
        path / f"{seed}.tltrace",
        name="disks",
        start_ns=START_NS,
        end_ns=START_NS + DAYS * DAY_NS,
        source="a test",
        licence="none",
        synthetic=True,
    ) as writer:
        for disk, cell in enumerate(cells):
            part = Component(
                id=f"d{disk:04}",
                kind="disk",
                from_ns=START_NS + int(began[disk]) * DAY_NS if began[disk] else None,
                until_ns=START_NS + (int(ended[disk]) + 1) * DAY_NS if failed[disk] else None,
                extra={} if cell is None else {"leak": cell},
            )
            writer.add(part)
    trace = Bundle.open(path / f"{seed}.tltrace")
    rows = np.flatnonzero(failed).tolist()
    failed_ns = np.full(DISKS, np.nan)
    failed_ns[rows] = START_NS + (ended[rows] + 1) * DAY_NS
    never = np.full(DISKS, np.nan)
    history = FailureHistory(failed_ns, np.zeros(DISKS), np.zeros(DISKS))
    return leaky_attributes(trace, watch(trace), ["leak"], history, never, horizon_ns=7 * DAY_NS)


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


END_DAY = 200
NAN = np.nan


def at(days):
    return START_NS + np.asarray(days, dtype=float) * DAY_NS


def flags_by_name(columns, failed=None, *, rack=None, came=NAN, began=None, until=None):
    """Return the reason for each flagged attribute.

    Of how many days since the trace began each failed, its telemetry came, and it was there first
    and last, NaN is none.
    """
    count = len(next(iter(columns.values())))
    none = np.full(count, NAN)
    failed = none if failed is None else np.asarray(failed, dtype=float)
    began, until = (none if days is None else days for days in (began, until))
    ids = [f"c{row}" for row in range(count)]
    parts = [SimpleNamespace(id="elsewhere", from_ns=1, until_ns=2)] + [
        SimpleNamespace(
            id=one,
            from_ns=None if np.isnan(began[row]) else at(began[row]),
            until_ns=None if np.isnan(until[row]) else at(until[row]),
        )
        for row, one in enumerate(ids)
    ]
    labels = SimpleNamespace(
        of=[
            {n: of[row] for n, of in columns.items() if of[row] is not None} for row in range(count)
        ],
        numbers={n for n, of in columns.items() if not any(isinstance(one, str) for one in of)},
    )
    trace = SimpleNamespace(
        manifest=SimpleNamespace(start_ns=START_NS, end_ns=int(at(END_DAY))), topology=lambda: parts
    )
    fleet = SimpleNamespace(ids=ids, labels=labels, rack=rack or [""] * count)
    history = FailureHistory(at(failed), np.zeros(count), np.zeros(count))
    flags = leaky_attributes(
        trace, fleet, [*columns], history, at(np.broadcast_to(came, count)), horizon_ns=7 * DAY_NS
    )
    return dict(flag.removeprefix("leaky_column: ").split(": ", 1) for flag in flags)


def apart_in_time(failing, days=24):
    """Return on which day each fails: a day apart and more, on so many days."""
    days = 8.0 * (np.cumsum(failing) % days) + 1.0
    return np.where(failing, days, NAN)


def test_a_leaky_group_is_flagged_also_if_numeric_and_others_are_still_checked():
    failing = np.arange(200) % 20 < 10
    batch = np.arange(200) // 10
    number = np.where(failing, 100.0, 0.0) + np.random.default_rng(0).random(200)
    odd = (batch * 7 % 20).astype(float)
    columns = {"word": ["x"] * 200, "batch": odd.tolist(), "number": number.tolist(), GROUP: odd}
    message = flags_by_name(columns, apart_in_time(failing), rack=[f"r{one}" for one in batch])
    assert [*message] == ["batch", "number", GROUP]
    for name in ("batch", GROUP):
        assert message[name].startswith(
            "failures of others with the same value separate the 100 components"
        )
    assert message["number"].startswith("it separates the 100 components that failed at any time")
