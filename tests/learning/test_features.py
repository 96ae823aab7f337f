import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.learning import FaultColumns, Features, in_words
from torchloom_core.plugin import Fault, Need, NeedFaults, NeedLabels, NeedPast, incidents
from torchloom_core.testing import view_of

NOW_S = 1_000_000.0
DAY_S = 86_400.0


def table(features, view):
    """Return name to ``(workers,)``."""
    values = features.compute(view)
    assert values.shape == (len(view), len(features.names))
    return dict(zip(features.names, values.T, strict=True))


def telemetry(values, *spans_s, tick_s=1.0):
    return table(Features(metrics=("m",), spans_s=spans_s), view_of({"m": values}, tick_s=tick_s))


def history(faults, **view):
    features = Features(half_lives_s=(DAY_S, 10 * DAY_S))
    named = table(features, view_of(faults=faults, now_s=NOW_S, **view))
    return {name.removesuffix(" in the last 50 d"): values for name, values in named.items()}


def fault(node, age_s, worker=""):
    ts_ns = round((NOW_S - age_s) * 1e9)
    return Fault(worker=worker, node=node, kind="exit", ts_ns=ts_ns, id=f"{node}-{age_s}")


def naive(values, tick_s):
    """Return what the names say of one worker's samples, the slow way."""
    seen = np.flatnonzero(np.isfinite(values))
    y = values[seen]
    nothing = dict.fromkeys(("mean", "standard deviation", "lowest", "highest", "slope"), np.nan)
    if not len(y):
        return nothing
    slope = np.polyfit(seen * tick_s, y, 1)[0] if len(y) > 1 else np.nan
    return dict(zip(nothing, (y.mean(), y.std(), y.min(), y.max(), slope), strict=True))


samples = st.floats(min_value=-1e4, max_value=1e4) | st.just(np.nan)
windows = st.integers(1, 4).flatmap(
    lambda workers: st.lists(
        st.lists(samples, min_size=12, max_size=12), min_size=workers, max_size=workers
    )
)


@settings(max_examples=examples(80), deadline=None)
@given(windows, st.floats(min_value=0, max_value=1e9), st.sampled_from([1.0, 300.0]))
def test_every_span_is_described_as_the_textbook_does(values, level, tick_s):
    values = np.array(values) + level
    spans = (2, 3, 6)
    named = telemetry(values, *(n * tick_s for n in spans), tick_s=tick_s)
    scraped = np.isfinite(values).any(axis=0)
    for n in spans:
        over = in_words(n * tick_s)
        for row, mine in enumerate(values[:, -n:]):
            found = {name: v[row] for name, v in named.items() if f" over {over}" in name}
            here = naive(mine, tick_s)
            known = values[row][np.isfinite(values[row])]
            if not np.isfinite(mine).any() and len(known):
                same = known[-1]  # no new value came
                still = {"mean": same, "lowest": same, "highest": same}
                here = {**dict.fromkeys(here, 0.0), **still}
            for what, expected in here.items():
                (value,) = (v for k, v in found.items() if k.startswith(what) and "above" not in k)
                close = pytest.approx(expected, rel=1e-6, abs=1e-3, nan_ok=True)
                assert value == close, (what, n)
            scrapes = scraped[-n:].sum()
            share = 1 - np.isfinite(mine).sum() / scrapes if scrapes else np.nan
            assert found[f"share of scrapes without m over {over}"] == pytest.approx(
                share, nan_ok=True
            )
            before = naive(values[row, -2 * n : -n], tick_s)["mean"]
            change = here["mean"] - before
            assert found[f"mean of m over {over} above that of the {over} before"] == (
                pytest.approx(change, rel=1e-6, abs=1e-4, nan_ok=True)
            )


@pytest.mark.parametrize("workers", [3, 3000])
def test_features_of_several_metrics_equal_those_of_each_alone(workers):
    random = np.random.default_rng(0)
    values = {name: random.normal(size=(workers, 9)) for name in ("a", "b", "c")}
    values["a"][random.random((workers, 9)) < 0.3] = np.nan
    values["b"][0], values["c"][:, 4] = np.inf, np.nan
    of_all = table(Features(metrics=("a", "b", "c"), spans_s=(2.0, 4.0)), view_of(values))
    for name in values:
        alone = Features(metrics=(name,), spans_s=(2.0, 4.0))
        for column, computed in table(alone, view_of({name: values[name]})).items():
            np.testing.assert_array_equal(computed, of_all[column])


def test_the_newest_value_its_age_and_its_distance_to_the_fleet_are_features():
    named = telemetry([[1.0, 5.0], [2.0, 7.0], [9.0, np.nan], [np.nan, np.nan]], 1.0)
    assert named["newest m"][:3].tolist() == [5.0, 7.0, 9.0]
    assert named["age of m in s"][:3].tolist() == [0.0, 0.0, 1.0]
    assert named["newest m above the fleet's median"][:3].tolist() == [-2.0, 0.0, 2.0]
    for name in ("newest m", "age of m in s", "newest m above the fleet's median"):
        assert np.isnan(named[name][3]), name


def test_a_counter_at_a_great_height_keeps_its_slope():
    named = telemetry([1e12 + 0.5 * np.arange(8), np.full(8, 1e12)], 4.0)
    assert named["slope of m over 4 s in units a second"] == pytest.approx([0.5, 0.0])


def test_infinite_and_extreme_values_are_unknown_not_infinite():
    named = telemetry([[np.inf, -np.inf, 1e300, -1e300], [1.0, 2.0, 3.0, 4.0]], 2.0)
    assert not np.isinf(np.array(list(named.values()))).any()
    assert named["mean of m over 2 s"][1] == 3.5


def test_a_fault_counts_for_all_workers_of_its_node_and_fades_by_half():
    named = history([fault("a", 20 * DAY_S), fault("a", DAY_S)], workers=3, node=("a", "a", "b"))
    assert named["faults"].tolist() == [2.0, 2.0, 0.0]
    assert named["faults, halved every 10 d"] == pytest.approx([0.25 + 0.5**0.1] * 2 + [0.0])
    assert named["faults, halved every 1 d"] == pytest.approx([0.5 + 0.5**20] * 2 + [0.0])
    since_s = named["seconds since the last fault"]
    assert since_s[:2] == pytest.approx([DAY_S, DAY_S])
    assert np.isnan(since_s[2])


def test_faults_beyond_the_memory_do_not_count():
    features = Features(half_lives_s=(DAY_S,))
    named = table(
        features,
        view_of(
            faults=[fault("n0", 5.5 * DAY_S), fault("n0", 4.5 * DAY_S)], workers=1, now_s=NOW_S
        ),
    )
    assert features.needs == (NeedPast(()), NeedFaults(5 * DAY_S))
    assert named["faults in the last 5 d"].tolist() == [1.0]


def test_a_value_sent_only_on_change_stays_valid():
    values = np.full((2, 24), np.nan)
    values[0, [0, 9]] = 3.0, 5.0
    view = view_of({"m": values}, tick_s=1.0, stale_after_s=3.0)
    assert np.isnan(view.latest("m")).all()
    named = table(Features(metrics=("m",), spans_s=(4.0,)), view)
    assert named["newest m"][0] == 5.0
    assert named["age of m in s"][0] == 14.0
    for name in ("mean", "lowest", "highest"):
        assert named[f"{name} of m over 4 s" if name == "mean" else f"{name} m over 4 s"][0] == 5.0
    assert named["standard deviation of m over 4 s"][0] == 0.0
    assert named["slope of m over 4 s in units a second"][0] == 0.0
    assert named["newest m above that 4 s ago"][0] == 0.0
    assert np.isnan([values[1] for name, values in named.items() if " m" in name]).all()


def test_features_have_the_times_since_a_counters_first_and_last_change():
    counters = [[0.0] * 8, [0.0, 0.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0], [7.0] + [np.nan] * 7]
    never_at_rest = [0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0]
    named = telemetry([*counters, never_at_rest], 7200.0, tick_s=3600.0)
    moved, rests = named["seconds since m began to change"], named["seconds since m last changed"]
    assert (moved[1], rests[1], rests[3]) == (5 * 3600.0, 3 * 3600.0, 3600.0)
    assert np.isnan([moved[0], rests[0], moved[2], rests[2], moved[3]]).all()


def test_without_past_there_are_no_age_features():
    features = Features(metrics=("m",), spans_s=(2.0,), past=False)
    assert features.needs == (Need("m", 4.0),)
    named = table(features, view_of({"m": [[1.0, 2.0, 3.0, 5.0]]}))
    assert not any(name.startswith("seconds") and "heard" not in name for name in named)
    assert not any(name.endswith(" ago") for name in named)


def test_the_value_a_span_ago_is_the_last_one_before_the_span():
    rows = [[np.nan, 2.0, np.nan, np.nan, 5.0, 9.0, np.nan, 9.0], [1.0] * 8, [np.nan] * 7 + [1.0]]
    above = telemetry(rows, 2.0, 4.0)
    assert above["newest m above that 4 s ago"][:2].tolist() == [7.0, 0.0]
    assert above["newest m above that 2 s ago"][:2].tolist() == [0.0, 0.0]
    assert np.isnan(above["newest m above that 4 s ago"][2])


def test_service_counts_from_the_first_sample_unless_that_came_as_the_watching_began():
    watched_s = [9 * DAY_S, 9 * DAY_S - 600.0, 2 * DAY_S, np.nan]
    view = view_of({"m": [1.0] * 4}, watched_s=watched_s)
    (column,) = (
        values
        for name, values in table(Features(metrics=("m",)), view).items()
        if name.startswith("seconds in service")
    )
    assert column[2] == 2 * DAY_S
    assert np.isnan(column[[0, 1, 3]]).all()


def test_the_others_of_a_group_count_a_node_at_every_half_life():
    named = history(
        [fault("a", 3.0 * DAY_S), fault("b", 2.0 * DAY_S), fault("b", DAY_S)],
        workers=5,
        node=("a", "b", "b", "c", "d"),
        rack=("r", "r", "r", "r", ""),
    )
    own = {"a": 0.5**0.3, "b": 0.5**0.2 + 0.5**0.1, "c": 0.0, "d": 0.0}
    others = named["faults a node of the others in its group, halved every 10 d"]
    a, b = (own["b"] + own["c"]) / 2, (own["a"] + own["c"]) / 2
    assert others[:4] == pytest.approx([a, b, b, (own["a"] + own["b"]) / 2], abs=1e-8)
    assert np.isnan(others[4])
    fleet = named["faults a node of the others in the fleet, halved every 10 d"]
    assert fleet[4] == pytest.approx((own["a"] + own["b"]) / 3, abs=1e-8)
    shorter = named["faults a node of the others in the fleet, halved every 1 d"]
    assert shorter[4] == pytest.approx((0.125 + 0.25 + 0.5) / 3, abs=1e-8)


def test_faults_of_others_are_scaled_up_for_unobserved_time():
    def of_the_fleet(watched_s):
        named = history([fault("a", DAY_S)], workers=3, node=("a", "b", "c"), watched_s=watched_s)
        return [
            named[f"faults a node of the others in the fleet, halved every {days} d"][1].item()
            for days in (1, 10)
        ]

    seen, for_long = of_the_fleet(np.nan), of_the_fleet(1000 * DAY_S)
    assert for_long == pytest.approx(seen)
    assert of_the_fleet([10 * DAY_S, DAY_S, np.nan]) == pytest.approx([seen[0], 2 * seen[1]], 1e-3)
    assert of_the_fleet(60.0) == pytest.approx([4 * seen[0], 4 * seen[1]])


def test_a_node_alone_in_its_group_or_its_fleet_has_no_others():
    named = history([fault("a", DAY_S)], workers=1, node=("a",), rack=("r",))
    assert named["faults"].tolist() == [1.0]
    assert all(np.isnan(v).all() for name, v in named.items() if " of the others " in name)


def test_what_was_no_more_than_a_warning_counts_by_itself_too():
    warned = msgspec.structs.replace(fault("a", DAY_S), fatal=False)
    named = history([fault("a", 3 * DAY_S), warned], workers=1, node=("a",))
    assert named["faults, halved every 1 d"] == pytest.approx([0.125 + 0.5])
    assert named["warnings, halved every 1 d"] == pytest.approx([0.5])


def test_a_later_view_gives_the_same_features_as_a_first_one():
    features = Features(half_lives_s=(DAY_S,))
    here = {"workers": 2, "node": ("a", "b"), "now_s": NOW_S}
    views = [
        view_of(faults=[fault("a", DAY_S)], rack=("r", "r"), **here),
        view_of(faults=[fault("a", DAY_S), fault("a", 60.0)], rack=("r", "r"), **here),
        view_of(faults=[fault("b", 60.0)], rack=("r", ""), **here),
    ]
    again = [Features(half_lives_s=(DAY_S,)).compute(view) for view in views]
    assert np.array_equal([features.compute(view) for view in views], again, equal_nan=True)


def test_without_groups_faults_of_others_are_not_computed_and_the_rest_is_the_same():
    view = view_of(workers=2, node=("a", "b"), now_s=NOW_S, faults=[fault("a", DAY_S)])
    alone = FaultColumns([DAY_S, 2 * DAY_S], incident_s=60.0, groups=None)
    own = alone.compute(view)
    assert own.shape == (2, len(alone.names))
    assert not [name for name in alone.names if "others" in name]
    of_all = FaultColumns([DAY_S, 2 * DAY_S], incident_s=60.0).compute(view)
    np.testing.assert_array_equal(own, of_all[:, : own.shape[1]])
    assert alone.history(own).decayed.tolist() == [[0.5, 0.5**0.5], [0.0, 0.0]]


def test_a_worker_without_a_node_stands_for_itself():
    named = history([fault("", 60.0, worker="w1")], workers=2, node=("", ""))
    assert named["faults"].tolist() == [0.0, 1.0]


def test_faults_of_a_node_without_workers_do_not_count():
    named = history([fault("spare", 60.0), fault("b", 30.0)], workers=2, node=("a", "b"))
    assert named["faults"].tolist() == [0.0, 1.0]


def test_faults_close_together_are_one_incident():
    faults = [fault("a", 190.0), fault("b", 90.0), fault("a", 50.0), fault("a", 45.0)]
    assert incidents([faults[0], *faults[2:]], 20) == [faults[0].ts_ns, faults[2].ts_ns]
    named = history(faults, workers=2, node=("a", "b"))
    assert named["faults"].tolist() == [2.0, 1.0]


def test_without_half_lives_there_are_no_fault_features():
    features = Features(metrics=("m",))
    assert not any("fault" in name for name in features.names)
    assert features.needs == (Need("m"), NeedPast(("m",)))


def test_an_empty_fleet_has_no_rows_but_all_columns():
    features = Features(metrics=("m",), spans_s=(2.0,), half_lives_s=(DAY_S,))
    view = view_of({"m": np.empty((0, 4))}, workers=0)
    assert features.compute(view).shape == (0, len(features.names))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": ("m", "m")}, "metrics: need each once, was m twice"),
        ({"spans_s": (5.0, 5.0)}, "spans_s: need each once, was 5.0 twice"),
        ({"half_lives_s": (0.0,)}, "half_lives_s: need seconds > 0, was 0.0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, message):
    with pytest.raises(PluginError) as refusal:
        Features(**arguments)
    assert str(refusal.value) == message


def test_a_numeric_attribute_is_a_feature_and_a_text_gives_the_faults_of_others_with_it():
    features = Features(attributes=("size", "model"), groups=("model",), half_lives_s=(DAY_S,))
    labels = [
        {"model": "x", "size": 4.0},
        {"model": "x", "size": 8.0},
        {"model": "y"},
        {"model": "x"},
        {},
    ]
    faults = [fault("n0", DAY_S), fault("n2", DAY_S)]
    named = table(features, view_of(workers=5, labels=labels, faults=faults, now_s=NOW_S))
    assert named["its size"][:2].tolist() == [4.0, 8.0]
    assert np.isnan(named["its size"][2:]).all()
    assert np.isnan(named["its model"]).all()
    same = named["faults a node of the others whose model is the same, halved every 1 d"]
    assert same[[0, 1, 3]].tolist() == [0.0, 0.25, 0.25]
    assert np.isnan(same[[2, 4]]).all()
    assert NeedLabels(("size", "model")) in features.needs


def test_labels_that_change_with_a_hello_are_looked_at_again():
    features = Features(attributes=("size",), groups=("model",), half_lives_s=(DAY_S,))
    for labels in ([{"size": 1.0}], [{"size": 2.0}]):
        view = view_of(workers=1, labels=labels, now_s=NOW_S)
        assert table(features, view)["its size"].tolist() == [labels[0]["size"]]


def test_fault_features_alone_do_not_include_the_heartbeat_age():
    """In a trace that depends on whether another reader needs telemetry."""
    faults = Features(half_lives_s=(DAY_S,))
    assert not any("heard" in name for name in faults.names)
    assert faults.compute(view_of(workers=2)).shape == (2, len(faults.names))
    assert Features(metrics=("temp",), half_lives_s=(DAY_S,)).names[0].endswith("was heard")


def test_where_in_a_season_a_moment_is_goes_round():
    features = Features(metrics=("m",), seasons_s=(DAY_S, 7 * DAY_S))
    midnight_s = 20_000 * DAY_S
    at = [features.compute(view_of({"m": [1.0]}, now_s=midnight_s + day * DAY_S))[0, :4]
          for day in (0.0, 0.25, 0.5, 1.0, 7.0, 7.25)]  # fmt: skip
    assert features.names[:4] == (
        "sine of the time, period 1 d",
        "cosine of the time, period 1 d",
        "sine of the time, period 7 d",
        "cosine of the time, period 7 d",
    )
    assert at[0][:2] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert at[1][:2] == pytest.approx([1.0, 0.0], abs=1e-6)
    assert at[2][:2] == pytest.approx([0.0, -1.0], abs=1e-6)
    assert at[3][:2] == pytest.approx(at[0][:2], abs=1e-6)
    assert abs(at[3][2:] - at[0][2:]).max() > 0.5
    assert at[4] == pytest.approx(at[0], abs=1e-6)
    assert at[5] == pytest.approx(at[1], abs=1e-6)
