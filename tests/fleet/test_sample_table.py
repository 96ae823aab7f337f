"""A table of many workers' samples has the same effect as the samples as telemetry."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.runs import START_NS, hello, telemetry
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.plugin import Need
from torchloom_core.wire.messages import Exit

WORKERS = ("a-0", "a-1", "b-0", "c-0")
METRICS = ("heat", "unwanted", "loss")
NEEDS = (Need("heat", 4.0), Need("loss"))
STATES = ("training", "paused", "standby")


@dataclass(frozen=True)
class Scrape:
    """What one tick brings: a row a worker of the tuple, which need not be in order."""

    workers: tuple[str, ...]
    values: list[list[float]]
    reported: list[bool] | None
    state: tuple[str, ...]
    step: list[int]
    progress_age_s: float


@st.composite
def scrapes(draw):
    workers = tuple(draw(st.lists(st.sampled_from(WORKERS), unique=True, min_size=1)))
    n = len(workers)

    def rows(of):
        return draw(st.lists(of, min_size=n, max_size=n))

    numbers = st.floats(allow_nan=True, width=64)
    return Scrape(
        workers=workers,
        values=rows(st.lists(numbers, min_size=3, max_size=3)),
        reported=draw(st.none() | st.just(rows(st.booleans()))),
        state=tuple(rows(st.sampled_from(STATES))),
        step=rows(st.integers(-1, 10**9)),
        progress_age_s=draw(st.floats(0, 1e6)),
    )


def fleet() -> FleetState:
    made = FleetState(NEEDS, tick_s=1.0, stale_after_s=10.0, costs=Costs())
    for worker in WORKERS:
        made.register(hello(worker), START_NS)
    made.end(Exit(run="run", worker="c-0", incarnation=1, status=0, expected=True), START_NS)
    return made


def as_table(fleet, scrape, ts_ns):
    table = SampleTable(
        workers=scrape.workers,
        metrics=METRICS,
        values=np.array(scrape.values),
        reported=None if scrape.reported is None else np.array(scrape.reported),
        state=scrape.state,
        step=np.array(scrape.step),
        progress_age_s=scrape.progress_age_s,
    )
    fleet.receive_table(table, ts_ns)


def as_telemetry(fleet, scrape, ts_ns):
    for row, worker in enumerate(scrape.workers):
        if scrape.reported is None or scrape.reported[row]:
            batch = telemetry(
                worker,
                dict(zip(METRICS, scrape.values[row], strict=True)),
                state=scrape.state[row],
                step=scrape.step[row],
                progress_age_s=scrape.progress_age_s,
            )
            fleet.receive(batch, ts_ns)


def seen(fleet, now_ns):
    view = fleet.view(now_ns, {})
    arrays = [view.step, view.heartbeat_age_s, view.progress_age_s, view.latest("heat")]
    arrays += [view.latest("loss"), view.age_s("loss"), view.window("heat", 4.0)]
    return view.state, [array.tobytes() for array in arrays]


@given(st.lists(scrapes(), min_size=1, max_size=6))
def test_a_table_gives_the_same_view_as_the_same_samples_in_batches(story):
    tables, batches = fleet(), fleet()
    for tick, scrape in enumerate(story, start=1):
        ts_ns = START_NS + tick * SECOND_NS
        as_table(tables, scrape, ts_ns)
        as_telemetry(batches, scrape, ts_ns)
        for each in (tables, batches):
            assert each.close_tick(ts_ns) == []
        assert seen(tables, ts_ns) == seen(batches, ts_ns)


def test_a_table_without_state_and_step_leaves_them_as_they_were():
    reported = fleet()
    story = Scrape(WORKERS[:2], [[1.0] * 3] * 2, None, ("paused", "training"), [7, 8], 0.0)
    as_table(reported, story, START_NS)
    bare = SampleTable(workers=WORKERS[:2], metrics=("heat",), values=np.ones((2, 1)))
    reported.receive_table(bare, START_NS)
    view = reported.view(START_NS, {})
    assert view.state[:2] == ("paused", "training")
    assert view.step[:2].tolist() == [7, 8]


def test_values_of_an_earlier_incarnation_are_not_in_the_next_column():
    former = fleet()
    former.receive_table(SampleTable(WORKERS, ("heat",), np.ones((4, 1))), START_NS)
    former.register(hello("a-0", incarnation=2), START_NS)
    former.close_tick(START_NS)
    newest = former.view(START_NS, {}).window("heat", 1.0)[:, 0]
    assert np.isnan(newest).tolist() == [True, False, False, False]


def test_a_table_of_a_worker_without_a_hello_is_an_error():
    with pytest.raises(KeyError, match="stranger"):
        fleet().receive_table(SampleTable(("stranger",), ("heat",), np.ones((1, 1))), START_NS)
