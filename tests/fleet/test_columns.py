"""Windows, ages and staleness equal those of a slow, plain implementation."""

import math
import struct
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.runs import START_NS, hello
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.plugin import Need, NeedPast
from torchloom_core.wire.messages import Telemetry

TICK_S, STALE_S = 1.0, 3.0
NEEDS = (Need("heat", 4.0), Need("heat"), Need("loss", 1.0), NeedPast(("heat",)))
WORKERS = ("a-0", "b-0", "c-0")
NAN = math.nan


def make_fleet(tick_s: float = TICK_S) -> FleetState:
    return FleetState(NEEDS, tick_s=tick_s, stale_after_s=STALE_S, costs=Costs())


def batch(
    worker: str, incarnation: int, metrics: tuple[str, ...], rows: list[list[float]]
) -> Telemetry:
    flat = [value for row in rows for value in row]
    return Telemetry(
        run="run",
        worker=worker,
        incarnation=incarnation,
        seq=0,
        state="training",
        step=1,
        progress_age_s=0.0,
        metrics=metrics,
        ts_ns=bytes(8 * len(rows)),
        values=struct.pack(f"<{len(flat)}d", *flat),
    )


@dataclass
class Row:
    """One incarnation of a worker: a list of values per tick, and the newest valid value."""

    incarnation: int
    seen_ns: int
    former: set[int] = field(default_factory=set)
    columns: dict[str, list[float]] = field(default_factory=lambda: {"heat": [], "loss": []})
    newest: dict[str, tuple[float, int]] = field(default_factory=dict)
    began_ns: dict[str, int] = field(default_factory=dict)
    changes_ns: dict[str, list[int]] = field(default_factory=lambda: {"heat": [], "loss": []})


class Reference:
    """What :class:`FleetState` should return, computed one number at a time."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.ticks = 0
        self._pending: list[tuple[Telemetry, int]] = []

    def register(self, worker: str, incarnation: int, now_ns: int) -> None:
        row = self.rows.get(worker)
        if row is None or self.may_begin(row, incarnation, now_ns):
            former = {row.incarnation, *row.former} if row else set()
            self.rows[worker] = Row(incarnation, now_ns, former)
            for column in self.rows[worker].columns.values():
                column += [NAN] * self.ticks
        elif incarnation == row.incarnation:
            row.seen_ns = now_ns

    def may_begin(self, row: Row, incarnation: int, now_ns: int) -> bool:
        silent = row.seen_ns < now_ns - round(STALE_S * SECOND_NS)
        return incarnation != row.incarnation and (
            silent or (incarnation > row.incarnation and incarnation not in row.former)
        )

    def receive(self, batch: Telemetry, ts_ns: int) -> None:
        self._pending.append((batch, ts_ns))

    def close_tick(self, now_ns: int) -> set[str]:
        strangers: set[str] = set()
        for row in self.rows.values():
            for column in row.columns.values():
                column.append(NAN)
        before = {worker: dict(row.newest) for worker, row in self.rows.items()}
        for got, ts_ns in self._pending:
            known = self.rows.get(got.worker)
            if known is None or self.may_begin(known, got.incarnation, now_ns):
                strangers.add(got.worker)
            elif got.incarnation == known.incarnation and got.ts_ns:
                last = np.frombuffer(got.values).reshape(-1, len(got.metrics))[-1]
                for metric, value in zip(got.metrics, last.tolist(), strict=True):
                    if metric in known.columns:
                        known.columns[metric][-1] = value
                        if not math.isnan(value):
                            known.newest[metric] = value, ts_ns
        for worker, row in self.rows.items():
            for metric, (value, at_ns) in row.newest.items():
                row.began_ns.setdefault(metric, at_ns)
                if before[worker].get(metric, (value, 0))[0] != value:
                    row.changes_ns[metric].append(at_ns)
        for got, ts_ns in self._pending:
            known = self.rows.get(got.worker)
            if known is not None and got.incarnation == known.incarnation:
                known.seen_ns = ts_ns
        self._pending.clear()
        self.ticks += 1
        return strangers

    def window(self, metric: str, samples: int) -> list[list[float]]:
        return [([NAN] * samples + r.columns[metric])[-samples:] for r in self.rows.values()]

    def latest(self, metric: str, now_ns: int) -> list[float]:
        limit_ns = now_ns - round(STALE_S * SECOND_NS)
        newest = [row.newest.get(metric, (NAN, 0)) for row in self.rows.values()]
        return [value if at_ns >= limit_ns else NAN for value, at_ns in newest]

    def age_s(self, metric: str, now_ns: int) -> list[float]:
        newest = [row.newest.get(metric) for row in self.rows.values()]
        return [(now_ns - pair[1]) / SECOND_NS if pair else math.inf for pair in newest]

    def last_known(self, metric: str) -> list[float]:
        return [row.newest.get(metric, (NAN, 0))[0] for row in self.rows.values()]

    def began_s(self, metric: str, now_ns: int) -> list[float]:
        began = [row.began_ns.get(metric) for row in self.rows.values()]
        return [NAN if ns is None else (now_ns - ns) / SECOND_NS for ns in began]

    def since_s(self, metric: str, which: int, now_ns: int) -> list[float]:
        changes = [row.changes_ns[metric] for row in self.rows.values()]
        return [(now_ns - ns[which]) / SECOND_NS if ns else NAN for ns in changes]


headers = st.sampled_from([("heat",), ("loss", "heat"), ("other",), ("heat", "other"), ()])
values = st.floats(width=64) | st.just(NAN)
arrivals = st.builds(
    lambda worker, incarnation, metrics, draw: ("batch", worker, incarnation, metrics, draw),
    st.sampled_from([*WORKERS, "x-0"]),
    st.integers(1, 2),
    headers,
    st.lists(values, min_size=9, max_size=9) | st.just([]),
)
events = st.one_of(
    st.tuples(st.just("hello"), st.sampled_from(WORKERS), st.integers(1, 2)),
    arrivals,
    arrivals,
    arrivals,
    st.tuples(st.just("tick"), st.sampled_from([1, 1, 2, 5])),
)


@settings(max_examples=examples(200))
@given(script=st.lists(events, min_size=5, max_size=50))
def test_columns_equal_those_of_a_simple_reference(script):
    fleet, reference, now_ns = make_fleet(), Reference(), START_NS
    for event in [*script, ("tick", 1)]:
        match event:
            case "hello", worker, incarnation:
                fleet.register(hello(worker, incarnation=incarnation), now_ns)
                reference.register(worker, incarnation, now_ns)
            case "batch", worker, incarnation, metrics, drawn:
                width = len(metrics)
                rows = [drawn[i : i + width] for i in range(0, len(drawn), 3)] if width else []
                for receiver in (fleet, reference):
                    receiver.receive(batch(worker, incarnation, metrics, rows), now_ns)
            case _, seconds:
                now_ns += seconds * SECOND_NS
                strangers = fleet.close_tick(now_ns)
                assert len(set(strangers)) == len(strangers)
                assert set(strangers) == reference.close_tick(now_ns)
                view = fleet.view(now_ns, {})
                assert view.workers == tuple(reference.rows)
                for metric, samples in (("heat", 4), ("heat", 2), ("loss", 1)):
                    window = view.window(metric, samples * TICK_S)
                    expected = reference.window(metric, samples)
                    np.testing.assert_array_equal(
                        window, np.array(expected).reshape(len(view), samples)
                    )
                    np.testing.assert_array_equal(
                        view.latest(metric), reference.latest(metric, now_ns)
                    )
                    np.testing.assert_array_equal(
                        view.age_s(metric), reference.age_s(metric, now_ns)
                    )
                    np.testing.assert_array_equal(
                        view.last_known(metric), reference.last_known(metric)
                    )
                for which, since in ((0, view.moved_s), (-1, view.changed_s)):
                    np.testing.assert_array_equal(
                        since("heat"), reference.since_s("heat", which, now_ns)
                    )
                rested = np.subtract(
                    reference.began_s("heat", now_ns), reference.since_s("heat", 0, now_ns)
                )
                np.testing.assert_allclose(view.rested_s("heat"), rested)
                with pytest.raises(KeyError, match="need it in a NeedPast in needs"):
                    view.moved_s("loss")


def test_a_batch_that_came_later_counts_though_its_header_came_first():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    for metrics, value in ((("heat",), 1.0), (("heat", "loss"), 2.0), (("heat",), 3.0)):
        fleet.receive(batch("a-0", 1, metrics, [[value] * len(metrics)]), START_NS)
    fleet.close_tick(START_NS)
    assert fleet.view(START_NS, {}).latest("heat") == [3.0]


def test_each_value_is_as_old_as_its_own_batch_where_others_of_the_tick_have_none():
    fleet = make_fleet()
    for second, (worker, value) in enumerate([("a-0", 1.0), ("b-0", NAN), ("c-0", 3.0)]):
        fleet.register(hello(worker), START_NS)
        sent = batch(worker, 1, ("heat", "loss"), [[value, 2.0]])
        fleet.receive(sent, START_NS + second * SECOND_NS)
    now_ns = START_NS + 2 * SECOND_NS
    fleet.close_tick(now_ns)
    view = fleet.view(now_ns, {})
    assert view.age_s("heat").tolist() == [2.0, math.inf, 0.0]
    assert view.age_s("loss").tolist() == [2.0, 1.0, 0.0]


def test_a_returned_array_of_last_values_does_not_change():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    fleet.receive(batch("a-0", 1, ("heat",), [[1.0]]), START_NS)
    fleet.close_tick(START_NS)
    before = fleet.view(START_NS, {}).last_known("heat")
    fleet.receive(batch("a-0", 1, ("heat",), [[2.0]]), START_NS)
    fleet.close_tick(START_NS)
    assert before == [1.0]


def test_a_new_incarnation_inherits_no_values():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    fleet.receive(batch("a-0", 1, ("heat",), [[9.0]]), START_NS)
    fleet.close_tick(START_NS)
    fleet.receive(batch("a-0", 1, ("heat",), [[8.0]]), START_NS)
    fleet.close_tick(START_NS)
    assert fleet.view(START_NS, {}).moved_s("heat") == [0.0]
    fleet.register(hello("a-0", incarnation=2), START_NS)
    view = fleet.view(START_NS, {})
    for method in (view.moved_s, view.changed_s, view.rested_s):
        assert np.isnan(method("heat")).all()
    assert np.isnan(view.window("heat", 4.0)).all()
    assert np.isnan(view.latest("heat")).all()
    assert view.age_s("heat") == [math.inf]
    assert view.step == [-1]


def test_the_past_has_the_times_of_first_value_first_change_and_last_change():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    for second, value in enumerate([5.0, 5.0, NAN, 6.0, 6.0, 5.0, 5.0]):
        now_ns = START_NS + second * SECOND_NS
        fleet.receive(batch("a-0", 1, ("heat",), [[value]]), now_ns)
        fleet.close_tick(now_ns)
    view = fleet.view(now_ns, {})
    assert (view.moved_s("heat"), view.changed_s("heat")) == ([3.0], [1.0])
    assert view.rested_s("heat") == [3.0]


def test_a_value_is_the_latest_until_it_is_older_than_stale():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    fleet.receive(batch("a-0", 1, ("heat",), [[9.0]]), START_NS)
    fleet.close_tick(START_NS)
    for view_at in (lambda ns: fleet.view(ns, {}), lambda ns: fleet.view_copy(ns, NEEDS)):
        assert view_at(START_NS + 3 * SECOND_NS).latest("heat") == [9.0]
        assert np.isnan(view_at(START_NS + 3 * SECOND_NS + 1).latest("heat"))


def test_a_pending_batch_is_reduced_to_its_newest_sample():
    fleet = make_fleet()
    fleet.receive(batch("a-0", 1, ("heat", "loss"), [[1.0, 2.0]] * 50), START_NS)
    ((pending, _),) = fleet._intake._pending
    assert (len(pending.ts_ns), len(pending.values)) == (8, 16)


def test_a_late_worker_does_not_change_the_others():
    fleet = make_fleet()
    for worker in (f"g{number}-0" for number in range(16)):
        fleet.register(hello(worker), START_NS)
        fleet.receive(batch(worker, 1, ("heat", "loss"), [[1.0, 2.0]]), START_NS)
    for value in (1.0, 2.0, 3.0):
        fleet.receive(batch("g0-0", 1, ("heat",), [[value]]), START_NS)
        fleet.close_tick(START_NS)
    before = fleet.view_copy(START_NS, NEEDS)
    fleet.register(hello("g16-0"), START_NS)
    after = fleet.view(START_NS, {})
    assert before.window("heat", 4.0)[0].tolist()[1:] == [1.0, 2.0, 3.0]
    for name in ("heat", "loss"):
        for method in ("latest", "age_s", "last_known"):
            was, now = getattr(before, method)(name), getattr(after, method)(name)
            np.testing.assert_array_equal(was, now[:16])
        np.testing.assert_array_equal(before.window(name, 1.0), after.window(name, 1.0)[:16])
    np.testing.assert_array_equal(before.window("heat", 4.0), after.window("heat", 4.0)[:16])
    for method in ("moved_s", "changed_s", "rested_s"):
        np.testing.assert_array_equal(
            getattr(before, method)("heat"), getattr(after, method)("heat")[:16]
        )


def test_many_workers_may_come_late():
    fleet = make_fleet()
    for number in range(100):
        worker = f"g{number}-0"
        fleet.register(hello(worker), START_NS)
        fleet.receive(batch(worker, 1, ("heat",), [[float(number)]]), START_NS)
        fleet.close_tick(START_NS)
    view = fleet.view(START_NS, {})
    np.testing.assert_array_equal(view.window("heat", 1.0)[-1], [99.0])
    np.testing.assert_array_equal(view.latest("heat"), np.arange(100.0))
    assert np.isnan(view.window("heat", 4.0)[99, :3]).all()


def test_what_a_view_gives_cannot_be_written():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    fleet.close_tick(START_NS)
    view = fleet.view(START_NS, {})
    for array in (
        view.latest("heat"),
        view.window("heat", 4.0),
        view.age_s("heat"),
        view.step,
        view.heartbeat_age_s,
        view.progress_age_s,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_window_longer_than_declared_is_refused_with_the_longest():
    view = make_fleet().view(START_NS, {})
    with pytest.raises(KeyError, match="need a window of at most 4 s, as declared, was 5 s"):
        view.window("heat", 5.0)
    with pytest.raises(KeyError, match="other: need a Need of it in needs"):
        view.latest("other")
    with pytest.raises(KeyError, match="need a window of at most 4 s, as declared, was 5 s"):
        make_fleet(tick_s=0.5).view(START_NS, {}).window("heat", 5.0)


def test_a_predictors_view_has_all_metrics_of_needs_that_can_be_gone_through_once():
    view = make_fleet().view_copy(START_NS, iter(NEEDS))
    assert (len(view.latest("heat")), len(view.latest("loss"))) == (0, 0)


def test_a_predictors_view_stays_as_it_is_while_the_fleet_goes_on():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    fleet.receive(batch("a-0", 1, ("heat",), [[1.0]]), START_NS)
    fleet.close_tick(START_NS)
    view = fleet.view_copy(START_NS, NEEDS[:1])
    fleet.receive(batch("a-0", 1, ("heat",), [[2.0]]), START_NS)
    fleet.knobs[0]["lr"] = 9.0
    fleet.register(hello("b-0"), START_NS)
    fleet.close_tick(START_NS + SECOND_NS)
    fleet.view(START_NS + SECOND_NS, {})
    np.testing.assert_array_equal(view.window("heat", 4.0), [[NAN, NAN, NAN, 1.0]])
    assert view.latest("heat") == [1.0]
    assert view.knob("lr") == [0.1]
    with pytest.raises(KeyError):
        view.latest("loss")


def test_headers_that_never_repeat_do_not_pile_up():
    fleet = make_fleet()
    fleet.register(hello("a-0"), START_NS)
    for number in range(3000):
        fleet.receive(batch("a-0", 1, (f"m{number}", "heat"), [[0.0, 1.0]]), START_NS)
    fleet.close_tick(START_NS)
    assert len(fleet._intake._columns_of) <= 1000
    assert fleet.view(START_NS, {}).latest("heat") == [1.0]
