import pytest

from tests.shared_data import shared_data
from tests.trace.small import NODES, START_NS, at, bundle, fault
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.describe.describe import describe
from torchloom_core.lab.trace.describe.plot import draw_faults
from torchloom_core.lab.trace.importers.infinitehbd import import_infinitehbd

DAY_S = 86_400


def test_counts_rates_and_repairs_are_reported(tmp_path):
    found = describe(
        bundle(
            tmp_path / "b",
            [
                *NODES,
                fault(DAY_S, "r0", resolved_s=DAY_S + 100, kind="power", follows="fabric"),
                fault(2 * DAY_S, "a", resolved_s=2 * DAY_S + 300, cause=f"r0@{DAY_S}"),
                fault(3 * DAY_S, "b"),
                fault(3 * DAY_S, "a", fatal=False),
            ],
            seconds=10 * DAY_S,
        )
    )
    assert (found.events, found.fatal, found.days) == (4, 3, 10.0)
    assert found.kinds == {"xid": 3, "power": 1}
    assert found.causes == {"": 3, "power": 1}
    assert found.follows == {"unknown": 2 / 3, "fabric": 1 / 3}
    assert (found.rate.failures, found.rate.component_days) == (4, 20.0)
    assert found.rate.per_day == pytest.approx(0.2)
    assert found.mtbf_s == pytest.approx(10 * DAY_S / 3)
    assert (found.repairs.resolved, found.repairs.unresolved) == (2, 1)
    assert found.repairs.quantiles_s == pytest.approx((120, 200, 280))
    assert found.watched == {"node": 2}


def test_events_that_happened_or_became_known_after_the_end_are_not_counted_but_listed(tmp_path):
    late = fault(9 * DAY_S, "b", avail_s=11 * DAY_S)
    rows = [*NODES, *(fault(day * DAY_S) for day in range(1, 21)), late]
    opened = bundle(tmp_path / "b", rows, seconds=10 * DAY_S)
    assert opened.beyond == (
        f"{tmp_path}/b/events.jsonl: events after the end of the trace, 2023-11-24T22:13:20Z, "
        "ignored: 11 (b@777600, a@950400, a@1.0368e+06, a@1.1232e+06, a@1.2096e+06 and 6 more)"
    )
    found = describe(opened)
    assert (found.events, found.fatal, found.rate.failures) == (10, 10, 10)
    assert bundle(tmp_path / "whole", rows, seconds=20 * DAY_S).beyond == ""


def test_prevalence_is_reported_for_a_custom_horizon_too(tmp_path):
    rows = [*NODES, fault(5 * DAY_S, "a", resolved_s=6 * DAY_S)]
    opened = bundle(tmp_path / "b", rows, seconds=11 * DAY_S)
    own = describe(opened, horizon_s=1.5 * DAY_S).prevalence
    assert [*own] == ["1 h", "1 d", "36 h", "7 d"]
    assert own["36 h"] == pytest.approx(1.5 / (2 * 9.5 - 1))
    assert [*describe(opened, horizon_s=DAY_S).prevalence] == ["1 h", "1 d", "7 d"]
    assert describe(opened, horizon_s=20 * DAY_S).prevalence["20 d"] is None


def test_prevalence_is_the_share_of_time_that_a_fault_followed(tmp_path):
    rows = [*NODES, fault(5 * DAY_S, "a", resolved_s=6 * DAY_S)]
    found = describe(bundle(tmp_path / "b", rows, seconds=11 * DAY_S))
    # A day of two nodes' ten days, of which one day was repair.
    assert found.prevalence["1 d"] == pytest.approx(1 / 19)
    # Days 0 to 4 of both nodes: day 5 on the horizon goes beyond the span.
    assert found.prevalence["7 d"] == pytest.approx(4 / 8)


def test_a_trace_shorter_than_the_horizon_has_no_prevalence(tmp_path):
    found = describe(bundle(tmp_path / "b", [*NODES, fault(1)], seconds=2 * 3600))
    assert found.prevalence["1 h"] is not None
    assert found.prevalence["1 d"] is None


def test_a_trace_without_a_failure_is_described(tmp_path):
    found = describe(bundle(tmp_path / "b", NODES, [(1, "a", "x", 1.0)], seconds=DAY_S * 2))
    assert (found.fatal, found.mtbf_s, found.follows, found.repairs.quantiles_s) == (
        0,
        None,
        {},
        (),
    )
    assert found.prevalence["1 d"] == 0.0
    assert found.rate.low == 0.0 < found.rate.high


# --- telemetry ---


def test_intervals_gaps_and_missing_samples_are_reported(tmp_path):
    # Node a every 10 s with a gap of 40 s, node b throughout; y only on b, once not valid.
    samples = [(t_s, "a", "x", 1.0) for t_s in (0, 10, 50, 60, 70, 80, 90)]
    samples += [(t_s, "b", "x", 1.0) for t_s in range(0, 100, 10)]
    y = [(t_s, "b", "y", 1.0, t_s != 40) for t_s in range(0, 100, 20)]
    found = describe(bundle(tmp_path / "b", NODES, [*samples, *y], seconds=100)).telemetry
    assert (found["x"].components, found["x"].samples, found["x"].invalid) == (2, 17, 0)
    assert found["x"].interval_s == 10.0
    assert found["x"].longest_gap_s == 40.0
    assert found["x"].missing == pytest.approx(3 / 20)
    assert (found["y"].components, found["y"].samples, found["y"].invalid) == (1, 5, 1)
    assert found["y"].longest_gap_s == 40.0
    assert found["y"].missing == pytest.approx(1 / 5)


def test_what_is_missing_counts_from_when_a_component_came(tmp_path):
    parts = [
        Component(id="a", kind="node"),
        Component(id="b", kind="node", from_ns=at(50)),
    ]
    samples = [(t_s, node, "x", 1.0) for t_s in range(0, 100, 10) for node in "ab"]
    samples = [sample for sample in samples if sample[1] == "a" or sample[0] >= 50]
    found = describe(bundle(tmp_path / "b", parts, samples, seconds=100)).telemetry
    assert found["x"].missing == 0.0


def daily(node, days):
    return [(day * DAY_S, node, "x", 1.0) for day in days]


@pytest.mark.parametrize("kind", ["disk", "node"])
def test_failed_or_late_components_count_for_their_time_in_service(tmp_path, kind):
    rows = [*(Component(id=name, kind=kind) for name in "abcd"), fault(4 * DAY_S, "b")]
    samples = [
        *daily("a", range(20)),
        *daily("b", range(4)),  # gone after 4 days
        *daily("c", range(15, 20)),  # comes after 15 days
        *daily("d", (*range(6), *range(10, 20))),  # fails, and reports again
    ]
    rows.append(fault(6 * DAY_S, "d"))
    found = describe(bundle(tmp_path / "b", rows, samples, seconds=20 * DAY_S))
    assert found.rate.failures == 2
    assert found.rate.component_days == pytest.approx(20 + 4 + 5 + 20)
    assert found.telemetry["x"].missing == pytest.approx(4 / 49)
    # Of the days that are judged one is followed by a failure of b, and one by that of d.
    assert found.prevalence["1 d"] == pytest.approx(2 / (19 + 4 + 4 + 19))


def test_a_component_that_stops_reporting_is_in_service_until_then_and_counted(tmp_path):
    days = {"a": range(60), "gone": range(30), "away": (*range(20), *range(40, 60))}
    samples = [one for name, own in days.items() for one in daily(name, own)]
    found = describe(bundle(tmp_path / "b", (), samples, seconds=60 * DAY_S))
    assert found.silent == 2
    assert found.rate.component_days == pytest.approx(60 + 31 + 60, abs=0.05)
    assert describe(bundle(tmp_path / "c", (), daily("a", range(60)))).silent == 0


def test_times_of_the_topology_take_precedence(tmp_path):
    rows = [
        Component(id="a", kind="disk"),
        Component(id="b", kind="disk", until_ns=at(12 * DAY_S)),
        Component(id="c", kind="disk", from_ns=at(2 * DAY_S)),
        fault(4 * DAY_S, "b"),
    ]
    samples = [*daily("a", range(20)), *daily("b", range(4)), *daily("c", range(5, 20))]
    found = describe(bundle(tmp_path / "b", rows, samples, seconds=20 * DAY_S))
    assert found.rate.component_days == pytest.approx(20 + 12 + 18)


def test_a_disk_without_telemetry_ends_with_its_failure_and_a_node_does_not(tmp_path):
    for kind, days in (("disk", 24), ("node", 40)):
        rows = [*(Component(id=name, kind=kind) for name in "ab"), fault(4 * DAY_S, "b")]
        found = describe(bundle(tmp_path / kind, rows, seconds=20 * DAY_S))
        assert found.rate.component_days == pytest.approx(days)


# --- the plot ---


@pytest.mark.slow
def test_the_plot_is_the_same_each_time(tmp_path):
    opened = bundle(tmp_path / "b", [*NODES, fault(1), fault(2, "r0", kind="power")])
    for name in ("one.svg", "two.svg", "three.png"):
        draw_faults(opened, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert "power (1)" in text
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_another_kind_or_place_is_refused(tmp_path):
    opened = bundle(tmp_path / "b", [*NODES, fault(1)])
    with pytest.raises(TraceError, match=r"plot\.gif: need a file \.png or \.svg, was \.gif"):
        draw_faults(opened, tmp_path / "plot.gif")
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match=r"plot\.svg: cannot be written: need a folder, was a f"):
        draw_faults(opened, tmp_path / "file" / "plot.svg")


def test_infinitehbd_has_its_published_figures(tmp_path):
    import_infinitehbd(shared_data("infinitehbd"), tmp_path / "i.tltrace")
    found = describe(Bundle.open(tmp_path / "i.tltrace"))
    assert found.fatal == 584
    assert found.watched == {"node": 400}
    assert found.kinds["GPU"] == 158
    assert found.repairs.quantiles_s[1] / 3600 == pytest.approx(20.4, abs=0.05)
    assert found.start_ns == START_NS + (1_711_756_800 - 1_700_000_000) * SECOND_NS
