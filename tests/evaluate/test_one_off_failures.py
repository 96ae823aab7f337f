"""A component that a failure ended is no longer at risk, neither in views nor in scores."""

import numpy as np
import pyarrow as pa
import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import BacktestForecasts, judge
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.fitting.examples import Examples
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.plugin import Need

DAY_S, DAY_NS = 86_400.0, 86_400 * SECOND_NS
DAYS, FAILS, BACK = 20, 6, 15
TASK = Task(horizon_s=2 * DAY_S, repair_s=DAY_S)


class Reader:
    """Read one metric."""

    name = "reader"
    needs = (Need("smart_5"),)
    horizon_s, every_s = 2 * DAY_S, DAY_S


@pytest.fixture
def disks(tmp_path):
    """Make three disks, of which one fails on day 6 for good, and one until it reports again."""
    days = {"gone": range(FAILS), "back": [*range(FAILS), *range(BACK, DAYS)], "well": range(DAYS)}
    rows = sorted((day * DAY_NS + 1, disk) for disk, seen in days.items() for day in seen)
    moments = pa.array([row[0] for row in rows], pa.int64())
    with BundleWriter(
        tmp_path / "disks.tltrace",
        name="disks",
        start_ns=0,
        end_ns=DAYS * DAY_NS,
        source="a test",
        licence="none",
        synthetic=True,
    ) as writer:
        for disk in ("gone", "back"):
            at_ns = FAILS * DAY_NS
            writer.add(
                Event(id=disk, t_event=at_ns, t_avail=at_ns, component=disk, kind="disk_failure")
            )
        writer.telemetry(
            pa.table(
                {
                    "t_event": moments,
                    "t_avail": moments,
                    "component": pa.array([row[1] for row in rows]),
                    "metric": pa.array(["smart_5"] * len(rows)),
                    "value": pa.array(np.zeros(len(rows))),
                    "valid": pa.array([True] * len(rows)),
                }
            )
        )
    return Bundle.open(tmp_path / "disks.tltrace")


def test_a_failed_component_is_scored_again_only_once_it_reports(disks):
    watched, times_ns = watch(disks), np.arange(DAYS, dtype=np.int64) * DAY_NS
    score = np.zeros((DAYS, len(watched.ids)))
    came = judge(disks, BacktestForecasts(watched, times_ns, DAY_S, score), TASK).outcome
    back, gone, well = (came[:, watched.ids.index(name)] for name in ("back", "gone", "well"))
    last = DAYS - 1  # less the horizon at the end
    assert np.isnan(gone[FAILS:]).all()
    assert np.isnan(back[FAILS : BACK + 1]).all()
    assert back[BACK + 1 : last].tolist() == [0.0] * (last - BACK - 1)
    assert gone[:FAILS].tolist() == [0.0] * (FAILS - 2) + [1.0, 1.0]
    assert well[:last].tolist() == [0.0] * last


def test_a_failed_component_is_absent_from_training_examples(disks):
    examples = Examples(
        disks,
        Reader(),
        TASK,
        tick_s=DAY_S,
        every_s=DAY_S,
        until_ns=(DAYS - 3) * DAY_NS,
        known_until_ns=(DAYS - 1) * DAY_NS,
        progress=lambda _: None,
    )
    states = {worker: [] for worker in ("gone", "back", "well")}  # of each day, from the first on
    for example in examples:
        for worker, state, outcome in zip(
            example.view.workers, example.view.state, example.outcome.tolist(), strict=True
        ):
            states[worker].append(state)
            assert state == "training" or np.isnan(outcome)
    assert [state == "gone" for state in states["gone"]] == [False] * 5 + [True] * 12
    assert [state == "gone" for state in states["back"]] == [False] * 5 + [True] * 10 + [False] * 2
    assert set(states["well"]) == {"training"}
