import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom_core.errors import PluginError
from torchloom_core.learning import Features, in_words
from torchloom_core.plugin import Fault, Need, NeedFaults, incidents
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


@settings(max_examples=80, deadline=None)
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
            for what, expected in naive(mine, tick_s).items():
                (value,) = (v for k, v in found.items() if k.startswith(what) and "above" not in k)
                close = pytest.approx(expected, rel=1e-6, abs=1e-3, nan_ok=True)
                assert value == close, (what, n)
            scrapes = scraped[-n:].sum()
            share = 1 - np.isfinite(mine).sum() / scrapes if scrapes else np.nan
            assert found[f"share of scrapes without m over {over}"] == pytest.approx(
                share, nan_ok=True
            )
            before = naive(values[row, -2 * n : -n], tick_s)["mean"]
            change = naive(mine, tick_s)["mean"] - before
            assert found[f"mean of m over {over} above that of the {over} before"] == (
                pytest.approx(change, rel=1e-6, abs=1e-4, nan_ok=True)
            )


def test_the_newest_value_its_age_and_its_distance_to_the_fleet_are_told():
    named = telemetry([[1.0, 5.0], [2.0, 7.0], [9.0, np.nan], [np.nan, np.nan]], 1.0)
    assert named["newest m"][:3].tolist() == [5.0, 7.0, 9.0]
    assert named["age of m in s"][:3].tolist() == [0.0, 0.0, 1.0]
    assert named["newest m above the fleet's median"][:3].tolist() == [-2.0, 0.0, 2.0]
    for name in ("newest m", "age of m in s", "newest m above the fleet's median"):
        assert np.isnan(named[name][3]), name


def test_a_metric_that_disappears_on_one_worker_is_missing_there_only():
    values = np.ones((3, 8))
    values[1, -4:] = np.nan
    missing = telemetry(values, 4.0)["share of scrapes without m over 4 s"]
    assert missing.tolist() == [0.0, 1.0, 0.0]


def test_a_scrape_gap_of_the_whole_fleet_is_nobodys_missing_metric():
    values = np.ones((3, 8))
    values[:, 5:7] = np.nan
    missing = telemetry(values, 4.0)["share of scrapes without m over 4 s"]
    assert missing.tolist() == [0.0, 0.0, 0.0]


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


def test_faults_nobody_was_to_remember_so_long_do_not_count():
    features = Features(half_lives_s=(DAY_S,))
    named = table(
        features,
        view_of(
            faults=[fault("n0", 5.5 * DAY_S), fault("n0", 4.5 * DAY_S)], workers=1, now_s=NOW_S
        ),
    )
    assert features.needs == (NeedFaults(5 * DAY_S),)
    assert named["faults in the last 5 d"].tolist() == [1.0]


def test_the_racks_other_nodes_count_apart_from_the_nodes_own():
    named = history(
        [fault("a", 3.0 * DAY_S), fault("b", 2.0 * DAY_S), fault("b", DAY_S)],
        workers=5,
        node=("a", "b", "b", "c", "d"),
        rack=("r", "r", "r", "r", ""),
    )
    others = named["faults of the rack's other nodes"]
    assert others[:4].tolist() == [2.0, 1.0, 1.0, 3.0]
    assert np.isnan(others[4])


def test_a_worker_without_a_node_stands_for_itself():
    named = history([fault("", 60.0, worker="w1")], workers=2, node=("", ""))
    assert named["faults"].tolist() == [0.0, 1.0]


def test_faults_of_a_node_where_no_worker_sits_count_for_nobody():
    named = history([fault("spare", 60.0), fault("b", 30.0)], workers=2, node=("a", "b"))
    assert named["faults"].tolist() == [0.0, 1.0]


def test_faults_close_together_are_one_incident():
    faults = [fault("a", 190.0), fault("b", 90.0), fault("a", 50.0), fault("a", 45.0)]
    assert incidents([faults[0], *faults[2:]], 20) == [faults[0].ts_ns, faults[2].ts_ns]
    named = history(faults, workers=2, node=("a", "b"))
    assert named["faults"].tolist() == [2.0, 1.0]


def test_without_half_lives_nothing_about_faults_is_looked_at():
    features = Features(metrics=("m",))
    assert not any("fault" in name for name in features.names)
    assert features.needs == (Need("m"),)


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


def test_seconds_are_said_in_the_unit_a_person_would_use():
    assert [in_words(s) for s in (30.0, 3600.0, 21_600.0, 1.8e6)] == [
        "30 s",
        "1 h",
        "6 h",
        "20.8 d",
    ]
