"""A table of samples, or a stretch of ticks, has the same effect as its samples one by one."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.runs import START_NS, hello, telemetry
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.samples import SampleStretch, SampleTable
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.plugin import Need, NeedFaults, NeedPast
from torchloom_core.wire.events import NodeFault
from torchloom_core.wire.messages import Exit

DAY_S = 86_400
WORKERS = ("a-0", "a-1", "b-0", "c-0")
METRICS = ("heat", "unwanted", "loss")
STATES = ("training", "paused", "standby")
NEEDS = (Need("heat", 4.0), Need("loss"), NeedPast(("loss",)), NeedFaults(9.0))
# Few, so that they repeat; what is missing, what is not finite and what has two signs among them.
finite = [0.0, -0.0, 1.0, 1.0, 2.0]
numbers = st.sampled_from(
    [st.sampled_from(finite), st.sampled_from([np.nan, np.nan, *finite, np.inf, -np.inf])]
)


@st.composite
def stretches(draw):
    """Return which workers report, and of up to 9 ticks what each reported and the values."""
    some = st.lists(st.sampled_from(WORKERS), unique=True, min_size=1)
    workers = draw(st.just(WORKERS) | some.map(tuple))
    metrics = draw(st.just(METRICS) | st.lists(st.sampled_from(METRICS), unique=True).map(tuple))
    ticks = draw(st.integers(1, 9))
    booleans = st.lists(st.booleans(), min_size=len(workers), max_size=len(workers) * ticks)
    reported = draw(st.just([True]) | booleans)
    cells = len(metrics) * ticks * len(workers)
    values = draw(st.lists(draw(numbers), min_size=cells, max_size=cells))
    return (
        workers,
        np.resize(reported, (ticks, len(workers))),
        metrics,
        np.reshape(values, (len(metrics), ticks, len(workers))),
    )


events = st.one_of(
    stretches(),
    stretches(),
    st.tuples(st.just("hello"), st.sampled_from(WORKERS)),
    st.tuples(st.just("fault"), st.sampled_from(WORKERS)),
)


def fleet(needs=NEEDS) -> FleetState:
    made = FleetState(needs, tick_s=1.0, stale_after_s=3.0, costs=Costs())
    for worker in WORKERS:
        made.register(hello(worker), START_NS)
    made.end(Exit(run="run", worker="c-0", incarnation=1, status=0, expected=True), START_NS)
    return made


def seen(fleet, now_ns):
    view = fleet.view(now_ns, {})
    arrays = [
        view.step,
        view.watched_s,
        view.heartbeat_age_s,
        view.progress_age_s,
        view.window("heat", 4.0),
    ]
    for metric in ("heat", "loss"):
        arrays += [view.latest(metric), view.age_s(metric), view.last_known(metric)]
    arrays += [view.moved_s("loss"), view.rested_s("loss"), view.changed_s("loss")]
    return view.state, view.faults, [array.tobytes() for array in arrays]


@settings(max_examples=examples(300))
@given(
    story=st.lists(events, min_size=1, max_size=6),
    needs=st.sampled_from([NEEDS, (*NEEDS, Need("unmeasured"))]),
)
def test_a_stretch_gives_the_same_view_as_its_samples_tick_by_tick(story, needs):
    at_once, by_tick, now_ns, incarnation = fleet(needs), fleet(needs), START_NS, 1
    for event in story:
        match event:
            case "hello", worker:
                incarnation += 1
                for each in (at_once, by_tick):
                    each.register(hello(worker, incarnation=incarnation), now_ns)
            case "fault", node:
                fault = NodeFault(node=node, kind="xid", ts_ns=now_ns, id=f"{node}{now_ns}")
                for each in (at_once, by_tick):
                    each.note_fault(fault)
            case workers, reported, metrics, values:
                ts_ns = now_ns + SECOND_NS * np.arange(1, len(reported) + 1)
                at_once.receive_stretch(SampleStretch(workers, metrics, ts_ns, values, reported))
                for tick, now_ns in enumerate(ts_ns.tolist()):
                    table = SampleTable(workers, metrics, values[:, tick].T, reported[tick])
                    by_tick.receive_table(table, now_ns)
                    by_tick.close_tick(now_ns)
        assert seen(at_once, now_ns) == seen(by_tick, now_ns)


def test_what_a_stretch_ended_with_is_what_the_next_one_begins_from():
    seen_first, seen_last = fleet(), fleet()
    for values in ([1.0, 2.0], [2.0, 2.0]):
        ts_ns = np.arange(START_NS, START_NS + 2 * SECOND_NS, SECOND_NS) + int(values[0]) * 10**10
        of_all = np.repeat(values, len(WORKERS)).reshape(1, 2, len(WORKERS))
        reported = np.ones((2, len(WORKERS)), dtype=bool)
        seen_last.receive_stretch(SampleStretch(WORKERS, ("loss",), ts_ns, of_all, reported))
        if values[0] == 1.0:
            seen_first.receive_stretch(SampleStretch(WORKERS, ("loss",), ts_ns, of_all, reported))
    now_ns = int(ts_ns[-1])
    for method in ("moved_s", "changed_s", "rested_s"):
        was, now = (getattr(f.view(now_ns, {}), method)("loss") for f in (seen_first, seen_last))
        np.testing.assert_array_equal(was, now)


def test_what_came_before_a_tick_in_which_nothing_came_is_the_newest():
    one = fleet((Need("loss"), Need("heat"), Need("unmeasured"), NeedPast(("loss",))))
    ts_ns = START_NS + SECOND_NS * np.arange(3)
    values = np.repeat([4.0, 5.0, np.nan], len(WORKERS)).reshape(1, 3, len(WORKERS))
    reported = ~np.isnan(values[0])
    one.receive_stretch(SampleStretch(WORKERS, ("loss",), ts_ns, values, reported))
    view = one.view(int(ts_ns[-1]), {})
    assert view.last_known("loss").tolist() == [5.0] * 4
    assert view.age_s("loss").tolist() == view.changed_s("loss").tolist() == [1.0] * 4
    with pytest.raises(KeyError, match="need it in a NeedPast in needs"):
        view.changed_s("heat")


def test_a_stretch_of_a_worker_without_a_hello_is_an_error():
    one = SampleStretch(
        workers=("stranger",),
        metrics=("heat",),
        ts_ns=np.array([START_NS]),
        values=np.ones((1, 1, 1)),
        reported=np.ones((1, 1), dtype=bool),
    )
    with pytest.raises(KeyError, match="stranger"):
        fleet().receive_stretch(one)


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
