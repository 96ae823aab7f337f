"""A feed gives a trace's inputs as a live run would have, and none before it was known."""

import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.runs import make_kernel
from tests.trace.small import (
    NODES,
    START_NS,
    Sample,
    at,
    bundle,
    fault,
    lines_of,
    plain,
    samples,
    table,
    ticks,
)
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError, TraceError
from torchloom_core.lab.trace.bundle import telemetry
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component, Event, Placement
from torchloom_core.lab.trace.feed import feed as feed_module
from torchloom_core.lab.trace.feed.feed import Feed, views
from torchloom_core.live.fleet.samples import SampleStretch, SampleTable
from torchloom_core.plugin import Need, NeedFaults, NeedPast
from torchloom_core.wire.events import NodeFault, Tick
from torchloom_core.wire.messages import Hello

NAN = math.nan


def feed_of(trace, **options):
    """Return a feed in which a failed component is away for a day, unless it is known otherwise."""
    return Feed(trace, **{"repair_s": 86_400.0, **options})


def same(left: list[float], right: list[float]) -> bool:
    return repr(left) == repr(right)


# --- which components are there ---


def test_every_component_sends_a_hello_and_every_tick_has_a_sample_and_a_tick(tmp_path):
    feed = feed_of(bundle(tmp_path / "t.tltrace", NODES), tick_s=20)
    kinds = [(ts_ns, type(message)) for ts_ns, message in feed]
    per_tick = [(at(s), kind) for s in (20, 40, 60) for kind in (SampleTable, Tick)]
    assert kinds == [(START_NS, Hello), (START_NS, Hello), *per_tick]
    (_, hello), *_ = feed
    assert (hello.worker, hello.node, hello.rack, hello.group) == ("a", "a", "r0", "a")
    assert hello.state == "training"


def test_a_fatal_fault_ends_an_incarnation_and_the_next_begins_when_it_is_resolved(tmp_path):
    rows = [*NODES, fault(5, avail_s=12, resolved_s=33)]
    feed = feed_of(bundle(tmp_path / "t.tltrace", rows), tick_s=10)
    assert lines_of(feed)[2:] == [
        (12, "fault", "a", "a@5"),
        (12, "fails", "a", 1),
        (33, "hello", "a", 2),
    ]
    (reported_fault,) = [message for _, message in feed if isinstance(message, NodeFault)]
    assert (reported_fault.ts_ns, reported_fault.kind) == (at(5), "xid")


def test_a_hidden_event_causes_no_fault_and_an_expected_exit(tmp_path):
    rows = [*NODES, fault(5, avail_s=12, resolved_s=33), fault(8, kind="note", fatal=False)]
    trace = bundle(tmp_path / "t.tltrace", rows)
    feed = feed_of(trace, tick_s=10, shows=lambda event: event.kind == "note")
    assert lines_of(feed)[2:] == [
        (8, "fault", "a", "a@8"),
        (12, "leaves", "a", 1),
        (33, "hello", "a", 2),
    ]


OVERLAPPING = (fault(5, resolved_s=30), fault(10, resolved_s=20), fault(25, resolved_s=50))


@pytest.mark.parametrize(
    ("faults", "lines"),
    [
        ([fault(5, fatal=False)], []),
        ([fault(5, follows="job")], [(5, "fails", "a", 1), (5, "hello", "a", 2)]),
        (OVERLAPPING, [(5, "fails", "a", 1), (50, "hello", "a", 2)]),
        ([fault(57)], [(57, "fails", "a", 1)]),
    ],
    ids=["not fatal", "of the job", "overlapping", "after the last tick"],
)
def test_a_fault_takes_a_node_away_from_its_end_of_service_to_its_return(tmp_path, faults, lines):
    found = lines_of(feed_of(bundle(tmp_path / "t.tltrace", [*NODES, *faults]), tick_s=25))[2:]
    assert [line for line in found if line[1] != "fault"] == lines
    assert [line[0] for line in found if line[1] == "fault"] == [
        (one.t_event - START_NS) / SECOND_NS for one in faults
    ]


def test_a_fault_of_a_rack_is_one_of_every_node_in_it_and_of_a_gpu_one_of_its_node(tmp_path):
    rows = [*NODES, fault(5, "r0", resolved_s=8), fault(20, "a/gpu-1", resolved_s=30)]
    lines = lines_of(feed_of(bundle(tmp_path / "t.tltrace", rows), tick_s=10))[2:]
    assert lines[:4] == [
        (5, "fault", "a", "r0@5/a"),
        (5, "fault", "b", "r0@5/b"),
        (5, "fails", "a", 1),
        (5, "fails", "b", 1),
    ]
    assert lines[6:8] == [(20, "fault", "a", "a/gpu-1@20"), (20, "fails", "a", 2)]


def test_earlier_faults_come_first_and_components_away_at_the_start_come_later(tmp_path):
    rows = [*NODES, fault(2, "b", resolved_s=4), fault(10, resolved_s=45)]
    trace = bundle(tmp_path / "t.tltrace", rows)
    assert lines_of(feed_of(trace, tick_s=10, start_ns=at(30))) == [
        (30, "fault", "b", "b@2"),
        (30, "fault", "a", "a@10"),
        (30, "hello", "b", 1),
        (45, "hello", "a", 1),
    ]


def test_components_appear_and_vanish(tmp_path):
    rows = [
        Component(id="early", kind="node", until_ns=at(25)),
        Component(id="late", kind="node", from_ns=at(15)),
        Component(id="later", kind="node", from_ns=at(90)),
    ]
    feed = feed_of(bundle(tmp_path / "t.tltrace", rows), tick_s=10)
    assert lines_of(feed) == [
        (0, "hello", "early", 1),
        (15, "hello", "late", 1),
        (25, "leaves", "early", 1),
    ]
    assert [list(tick) for tick in samples(feed)][:2] == [["early"], ["early", "late"]]


def test_a_group_follows_the_placement_within_an_incarnation(tmp_path):
    rows = [
        *NODES,
        Placement(job="j", group="g0", rank=1, component="a/gpu-1", from_ns=at(0)),
        Placement(job="j", group="g0", rank=0, component="a/gpu-0", from_ns=at(0)),
        Placement(job="j", group="g1", rank=0, component="b", from_ns=at(0), until_ns=at(15)),
        Placement(job="j", group="g2", rank=3, component="b", from_ns=at(25)),
    ]
    feed = feed_of(bundle(tmp_path / "t.tltrace", rows), tick_s=10)
    hellos = [
        ((ts_ns - START_NS) / 1e9, hello.worker, hello.group, hello.rank, hello.incarnation)
        for ts_ns, hello in feed
        if isinstance(hello, Hello)
    ]
    assert hellos == [
        (0, "a", "g0", 0, 1),
        (0, "b", "g1", 0, 1),
        (15, "b", "b", 0, 1),
        (25, "b", "g2", 3, 1),
    ]


def test_groups_of_several_jobs_carry_the_jobs_name(tmp_path):
    rows = [
        *NODES,
        Placement(job="j", group="0", rank=0, component="a", from_ns=at(0)),
        Placement(job="k", group="0", rank=0, component="b", from_ns=at(0)),
    ]
    feed = feed_of(bundle(tmp_path / "t.tltrace", rows), tick_s=10)
    assert [m.group for _, m in feed if isinstance(m, Hello)] == ["j/0", "k/0"]


# --- what is measured ---


def test_the_newest_valid_value_of_a_tick_counts_and_every_tick_begins_anew(tmp_path):
    trace = bundle(
        tmp_path / "t.tltrace",
        NODES,
        [
            (3, "a", "temp", 50.0),
            (10, "a", "temp", 60.0),
            (11, "a", "temp", 70.0),
            (12, "a", "temp", 99.0, False),
            (12, "b", "temp", 99.0, False),
            (12.5, "a", "temp", float("inf")),
            (13, "a", "power", 7.0),
        ],
        seconds=40,
    )
    first, second, third, _ = samples(feed_of(trace, tick_s=10))
    assert same(first["a"][1], [NAN, 60.0])
    assert same(second["a"][1], [7.0, 70.0])
    assert second["b"][0]
    assert same(second["b"][1], [NAN, NAN])
    assert not third["a"][0]
    assert same(third["a"][1], [NAN, NAN])


def test_a_node_has_the_maximum_of_its_parts_and_rack_metrics_apply_to_all_nodes(tmp_path):
    trace = bundle(
        tmp_path / "t.tltrace",
        NODES,
        [
            (1, "a/gpu-0", "temp", 50.0),
            (2, "a/gpu-1", "temp", 70.0),
            (3, "a/gpu-0", "temp", 40.0),
            (3, "r0", "inlet", 20.0),
            (4, "nobody", "temp", 99.0),
        ],
        seconds=10,
    )
    (tick,) = samples(feed_of(trace, tick_s=10))
    assert same(tick["a"][1], [20.0, 70.0])
    assert same(tick["b"][1], [20.0, NAN])
    assert (tick["a"][0], tick["b"][0]) == (True, False)


def test_telemetry_of_nodes_without_parts_is_unchanged(tmp_path):
    nodes = [Component(id=name, kind="node") for name in "ab"]
    rows = [(1, "b", "temp", 5.0), (2, "b", "power", 6.0), (3, "nobody", "temp", 99.0)]
    rows.append((4, "b", "fan", 7.0))
    (tick,) = samples(feed_of(bundle(tmp_path / "t.tltrace", nodes, rows, seconds=10), tick_s=10))
    assert tick["b"] == (True, [7.0, 6.0, 5.0])
    assert not tick["a"][0]
    assert same(tick["a"][1], [NAN, NAN, NAN])


def test_only_the_given_metrics_are_read_and_unknown_ones_are_left_out(tmp_path):
    trace = bundle(
        tmp_path / "t.tltrace", NODES, [(1, "a", "temp", 1.0), (2, "a", "power", 2.0)], seconds=10
    )
    (tick,) = samples(feed_of(trace, tick_s=10, metrics=["temp", "nothing", "temp"]))
    assert tick["a"] == (True, [1.0])


def test_without_telemetry_every_component_that_is_not_away_reports(tmp_path):
    rows = [*NODES, fault(12, resolved_s=25)]
    reported = [
        {worker: has_reported for worker, (has_reported, _) in tick.items()}
        for tick in samples(feed_of(bundle(tmp_path / "t.tltrace", rows, seconds=30), tick_s=10))
    ]
    assert reported == [{"a": True, "b": True}, {"a": False, "b": True}, {"a": True, "b": True}]


def test_what_came_before_the_start_is_in_no_sample(tmp_path):
    rows = [(0, "a", "temp", 1.0), (10, "a", "temp", 2.0), (20 + 1e-9, "a", "temp", 3.0)]
    trace = bundle(tmp_path / "t.tltrace", NODES, rows, seconds=30)
    from_10 = samples(feed_of(trace, tick_s=10, start_ns=at(10)))
    assert [tick["a"][0] for tick in from_10] == [False, True]
    (from_20,) = samples(feed_of(trace, tick_s=10, start_ns=at(20)))
    assert from_20["a"] == (True, [3.0])
    first, second, _ = samples(feed_of(trace, tick_s=10))
    assert (first["a"], second["a"][0]) == ((True, [2.0]), False)


def test_where_files_are_cut_makes_no_difference(tmp_path):
    rows: list[Sample] = [(s / 3, "ab"[s % 2], "temp", float(s)) for s in range(1, 100)]
    trace = bundle(tmp_path / "t.tltrace", NODES, rows)
    whole = plain(feed_of(trace, tick_s=2), at(60))
    folder = trace.path / "telemetry"
    data = table(rows)
    for number, start in enumerate(range(0, len(rows), 7)):
        pq.write_table(data.slice(start, 7), folder / f"{number:06}.parquet")
    assert plain(feed_of(Bundle.open(trace.path), tick_s=2), at(60)) == whole


@pytest.mark.parametrize("part_rows", [1, 2, 1000])
def test_what_came_before_the_row_before_it_is_refused_wherever_parts_end(
    tmp_path, monkeypatch, part_rows
):
    trace = bundle(tmp_path / "t.tltrace", NODES, [(s, "a", "temp", 1.0) for s in (1, 2, 3, 4)])
    (path,) = trace.parquet_files
    pq.write_table(pq.read_table(path).take([0, 2, 1, 3]), path)
    monkeypatch.setattr(telemetry, "PART_ROWS", part_rows)
    rule = r"need t_avail >= that of the row before, 2023-11-14T22:13:23Z, was 2023-11-14T22:13:22Z"
    with pytest.raises(TraceError, match=rule):
        list(feed_of(trace, tick_s=1))


# --- several ticks at once ---


def test_how_many_ticks_come_at_once_is_in_no_bit_of_what_they_bring(tmp_path, monkeypatch):
    gpus = [Component(id=f"a/{number}", kind="gpu", parents=("a",)) for number in range(20)]
    zeros = np.random.default_rng(0).choice([0.0, -0.0], (60, len(gpus))).tolist()
    rows = [
        (float(s), gpu.id, "temp", value)
        for s, of_gpus in enumerate(zeros)
        for gpu, value in zip(gpus, of_gpus, strict=True)
    ]
    nodes = [Component(id=name, kind="node") for name in "ab"]
    feed = feed_of(bundle(tmp_path / "t.tltrace", [*nodes, *gpus], rows), tick_s=1)

    def values() -> bytes:
        brought = [
            message.values
            for _, message in feed.stretches(START_NS, 60 * SECOND_NS)
            if isinstance(message, SampleStretch)
        ]
        return np.concatenate(brought, axis=1).tobytes()

    at_once = values()
    monkeypatch.setattr(feed_module, "_MAX_CELLS", 1)
    assert values() == at_once


# --- the whole ---


def test_a_kernel_takes_it_all_and_a_feed_can_be_read_again(tmp_path):
    rows = [*NODES, fault(5, avail_s=12, resolved_s=33), fault(20, "r0", resolved_s=40)]
    feed = feed_of(bundle(tmp_path / "t.tltrace", rows, [(s, "a", "temp", s) for s in range(60)]),
                tick_s=10)  # fmt: skip
    kernel = make_kernel()
    for ts_ns, message in feed:
        kernel.step(message, ts_ns)
    assert kernel.ticks == 6
    assert kernel.fleet.state == ["training", "training"]
    assert plain(feed, at(60)) == plain(feed, at(60))
    times = [ts_ns for ts_ns, _ in feed]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"tick_s": 0.0}, "need tick_s > 0, was 0"),
        ({"tick_s": 5e-7}, "need at most 100000000 ticks in its span, was tick_s 5e-07"),
        ({"tick_s": 1.0, "start_ns": at(60)}, "need a start before the end"),
    ],
)
def test_a_span_or_tick_that_cannot_be_is_refused(tmp_path, changes, rule):
    trace = bundle(tmp_path / "t.tltrace", NODES)
    with pytest.raises(TraceError, match=rule):
        feed_of(trace, **changes)


def test_a_trace_of_nothing_is_refused(tmp_path):
    with pytest.raises(TraceError, match="need a component to watch, was none"):
        feed_of(bundle(tmp_path / "t.tltrace", []), tick_s=1)


@dataclass(frozen=True)
class Past:
    """What may stand in a trace."""

    events: tuple[Event, ...]
    samples: tuple[Sample, ...]


PASSING = Component(id="c", kind="node", parents=("r0",), from_ns=at(15), until_ns=at(35))
seconds = st.integers(0, 59).map(float)
component = st.sampled_from([part.id for part in (*NODES, PASSING)])
events = st.builds(
    lambda t, late, name, **rest: fault(t, name, avail_s=min(59.0, t + late), **rest),
    t=seconds,
    late=st.integers(0, 9),
    name=component,
    fatal=st.booleans(),
    follows=st.sampled_from(["component", "job", "unknown"]),
)
readings = st.tuples(
    seconds, component, st.sampled_from(["temp", "power", "fan"]), st.floats(-9, 9), st.booleans()
)


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    found = draw(st.lists(events, max_size=5))
    # The latter have an id of their own each, and most of them an end.
    found = [
        msgspec.structs.replace(
            event,
            id=f"e{number}",
            t_resolved=draw(st.none() | st.integers(event.t_event, at(80))),
        )
        for number, event in enumerate(found)
    ]
    # One reading of every metric always stays, so that the columns are known from the start.
    always: list[Sample] = [(0.0, "a", metric, 0.0) for metric in ("temp", "power", "fan")]
    return Past(tuple(found), tuple(always + draw(st.lists(readings, max_size=25))))


def with_another_future(past: Past, other: Past, now_s: float) -> Past:
    """Return a past that is the same until ``now_s`` and another after it."""
    known = [
        msgspec.structs.replace(event, t_resolved=at(now_s + 7))
        if event.t_resolved is not None and event.t_resolved > at(now_s)
        else event
        for event in past.events
        if event.t_avail <= at(now_s)
    ]
    new = [
        msgspec.structs.replace(event, id=f"new-{event.id}")
        for event in other.events
        if event.t_avail > at(now_s)
    ]
    return replace(
        past,
        events=(*known, *new),
        samples=(
            *(sample for sample in past.samples if sample[0] <= now_s),
            *(sample for sample in other.samples if sample[0] > now_s),
        ),
    )


def tick_by_tick(feed: Feed, from_ns: int, every_ns: int) -> list[tuple[int, str]]:
    """Return what :func:`plain` does, of stretches."""
    lines: list[tuple[int, str]] = []
    for ts_ns, message in feed.stretches(from_ns, every_ns):
        if not isinstance(message, SampleStretch):
            lines.append((ts_ns, repr(message)))
            continue
        of_all = f"{message.workers} {message.metrics}"
        for tick, at_ns in enumerate(message.ts_ns.tolist()):
            values, reported = message.values[:, tick].T, message.reported[tick]
            lines.append((at_ns, f"{of_all} {values.tobytes()!r} {reported.tobytes()!r}"))
            lines.append((at_ns, repr(Tick())))
    return lines


@settings(max_examples=examples(60))
@given(
    past=pasts(),
    options=st.fixed_dictionaries(
        {
            "tick_s": st.sampled_from([1.0, 4.0, 7.0]),
            "start_ns": st.sampled_from([at(0), at(13)]),
            "metrics": st.sampled_from([None, ["power"], []]),
        }
    ),
    from_s=st.integers(0, 59),
    every_ticks=st.integers(1, 9),
)
def test_a_stretch_equals_its_single_ticks(past, options, from_s, every_ticks):
    with tempfile.TemporaryDirectory() as folder:
        trace = bundle(Path(folder) / "t.tltrace", [*NODES, PASSING, *past.events], past.samples)
        feed = feed_of(trace, **options)
        every_ns = every_ticks * round(options["tick_s"] * SECOND_NS)
        assert tick_by_tick(feed, at(from_s), every_ns) == plain(feed, at(60))


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(past=pasts(), other=pasts(), now_s=seconds, tick_s=st.sampled_from([1.0, 10.0]))
def test_another_future_changes_no_input_before_it(past, other, now_s, tick_s):
    with tempfile.TemporaryDirectory() as folder:
        one = bundle(Path(folder) / "1.tltrace", [*NODES, PASSING, *past.events], past.samples)
        two = with_another_future(past, other, now_s)
        another = bundle(Path(folder) / "2.tltrace", [*NODES, PASSING, *two.events], two.samples)
        before = plain(feed_of(one, tick_s=tick_s), at(now_s))
        assert before == plain(feed_of(another, tick_s=tick_s), at(now_s))
        assert ticks(feed_of(one, tick_s=tick_s)) == ticks(feed_of(another, tick_s=tick_s))


def test_another_future_is_seen_as_soon_as_it_has_come(tmp_path):
    """Else the test above would hold of a future that is none, or of a feed without inputs."""
    past = Past(
        (fault(20, "a", id="old", t_resolved=at(50)), fault(33, "b", id="e0")),
        ((0.0, "a", "temp", 1.0), (33.0, "a", "temp", 2.0)),
    )
    other = Past((fault(36, "a", id="e1"),), ((34.0, "a", "temp", 3.0),))
    two = with_another_future(past, other, 30.0)
    assert [one.id for one in two.events] == ["old", "new-e1"]
    feeds = [
        feed_of(bundle(tmp_path / f"{name}.tltrace", [*NODES, *of.events], of.samples), tick_s=10)
        for name, of in (("was", past), ("now", two))
    ]
    was, now = (plain(feed, at(30)) for feed in feeds)
    assert was == now
    assert any("old" in text for _, text in was)
    assert max(ts_ns for ts_ns, _ in was) == at(30)
    was, now = (plain(feed, at(40)) for feed in feeds)
    assert was != now


DAY_S = 86_400
TEMP = [(float(s), "a", "temp", float(s)) for s in range(60)]


def look(trace, needs=(), tick_s=5.0, every_s=5.0, repair_s=DAY_S, **span):
    options = {"tick_s": tick_s, "every_s": every_s, "repair_s": repair_s}
    return views(trace, needs=needs, **options, **span)


def test_a_view_comes_every_so_many_ticks_from_the_start_on(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES)
    assert [view.now_ns for view in look(trace, every_s=20)] == [at(20), at(40), at(60)]
    assert [view.now_ns for view in look(trace, every_s=11, start_ns=at(30), end_ns=at(55))] == [
        at(40),
        at(50),
    ]


def test_a_value_is_valid_for_three_ticks_and_costs_and_events_are_those_given(tmp_path):
    rows = [(1.0, "a", "temp", 5.0)]
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(2, "b", fatal=False)], rows)
    costs = Costs(checkpoint_s=77.0)
    latest = []
    for view in look(trace, [Need("temp")], end_ns=at(25), costs=costs, shows=lambda _: False):
        latest.append(view.latest("temp")[0].item())
        assert (view.costs, view.faults) == (costs, ())
    assert repr(latest) == repr([5.0] * 4 + [NAN])


def test_a_view_has_workers_nodes_and_metrics(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(22, resolved_s=33)], TEMP)
    seen = [
        (view.state, view.latest("temp").tolist(), len(view.faults))
        for view in look(trace, [Need("temp")], every_s=10)
    ]
    up, down = ("training", "training"), ("gone", "training")
    assert repr(seen) == repr(
        [
            (up, [10.0, NAN], 0),
            (up, [20.0, NAN], 0),
            (down, [30.0, NAN], 2),
            (up, [40.0, NAN], 2),
            (up, [50.0, NAN], 2),
            (up, [59.0, NAN], 2),
        ]
    )
    view = next(look(trace))
    assert (view.workers, view.node, view.rack) == (("a", "b"), ("a", "b"), ("r0", "r0"))


def test_the_first_window_is_as_full_as_the_last(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES, TEMP)
    windows = [
        view.window("temp", 20)[0].tolist()
        for view in look(trace, [Need("temp", window_s=20)], start_ns=at(30), every_s=25)
    ]
    assert windows == [[40.0, 45.0, 50.0, 55.0]]
    first = next(look(trace, [Need("temp", window_s=20)], start_ns=at(10)))
    assert repr(first.window("temp", 20)[0].tolist()) == repr([NAN, 5.0, 10.0, 15.0])


def test_the_past_begins_with_the_trace(tmp_path):
    rows = [(1.0, "a", "errors", 0.0), (12.0, "a", "errors", 2.0), (31.0, "b", "errors", 7.0)]
    trace = bundle(tmp_path / "t.tltrace", NODES, rows)
    needs = [Need("errors"), NeedPast(("errors",))]
    (late,) = look(trace, needs, start_ns=at(50), end_ns=at(55))
    *_, whole = look(trace, needs, end_ns=at(55))
    for view in (late, whole):
        assert view.last_known("errors").tolist() == [2.0, 7.0]
        assert repr(view.moved_s("errors").tolist()) == repr([40.0, NAN])
        assert view.watched_s.tolist() == [50.0, 20.0]
    (without,) = look(trace, [Need("errors")], start_ns=at(50), end_ns=at(55))
    assert np.isnan(without.last_known("errors")).all()


def test_a_view_of_every_few_ticks_is_that_of_every_tick(tmp_path):
    rows = [
        *((float(s), "a", "errors", float(s // 20)) for s in range(0, 60, 3)),
        *((float(s), "b", "errors", float(s)) for s in (4, 33, 34, 58)),
    ]
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(22, resolved_s=31)], rows)
    needs = [Need("errors", window_s=15), NeedPast(("errors",))]

    def seen(view):
        arrays = [view.window("errors", 15), view.last_known("errors"), view.moved_s("errors")]
        arrays += [view.rested_s("errors"), view.changed_s("errors"), view.watched_s]
        return view.state, [array.tolist() for array in arrays]

    every = {view.now_ns: repr(seen(view)) for view in look(trace, needs)}
    few = {view.now_ns: repr(seen(view)) for view in look(trace, needs, every_s=20)}
    assert few == {now_ns: every[now_ns] for now_ns in (at(20), at(40), at(60))}
    (late,) = look(trace, needs, start_ns=at(50), end_ns=at(60), every_s=10)
    assert repr(seen(late)) == every[at(60)]


def test_faults_before_the_start_are_remembered_as_long_as_declared(tmp_path):
    rows = [*NODES, fault(2, fatal=False)]
    trace = bundle(tmp_path / "t.tltrace", rows, seconds=3 * DAY_S)
    late = {"tick_s": 600.0, "start_ns": at(2 * DAY_S)}
    first = next(look(trace, [NeedFaults(3 * DAY_S)], **late))
    assert [(fault.node, fault.ts_ns) for fault in first.faults] == [("a", at(2))]
    assert next(look(trace, **late)).faults == ()


def test_faults_of_the_last_day_are_in_a_view_without_needs_as_in_the_weaver(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(2, fatal=False)])
    for needs in ((), [NeedFaults(30.0)]):
        first = next(look(trace, needs, start_ns=at(40)))
        assert [fault.ts_ns for fault in first.faults] == [at(2)]


def test_a_window_of_too_many_ticks_is_refused(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES)
    with pytest.raises(PluginError, match="need window_s of at most 100000 ticks of 1 s"):
        next(look(trace, [Need("temp", window_s=2e5)], tick_s=1.0))
