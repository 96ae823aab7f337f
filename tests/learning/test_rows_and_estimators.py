import io
import subprocess
import sys
import zipfile

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info

from torchloom_core.floor.errors import ModelError, PluginError
from torchloom_core.interface.needs import labels_read
from torchloom_core.lab.learning import (
    Features,
    Rows,
    RowSample,
    Scale,
    arrays_bytes,
    arrays_part,
    estimator_bytes,
    estimator_part,
    json_part,
    minimum,
    step_means,
)
from torchloom_core.lab.learning.rows import RowGathering
from torchloom_core.plugin import Example
from torchloom_core.testing import view_of

DAY_NS = 86_400 * 10**9


def filled(outcomes, max_healthy=1000, seed=0):
    """Return a sample that was shown one example a day; a row's feature is its number."""
    sample, number = RowSample(max_healthy, seed), 0
    for day, outcome in enumerate(outcomes):
        features = np.arange(number, number + len(outcome), dtype=float)[:, None]
        sample.add(day * DAY_NS, features, np.array(outcome, dtype=float))
        number += len(outcome)
    return sample


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, np.nan]), max_size=30),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 50),
)
def test_every_failure_is_sampled_and_healthy_rows_up_to_the_limit(outcomes, most):
    flat = np.concatenate([np.array(outcome) for outcome in outcomes])
    failures, healthy = np.flatnonzero(flat == 1.0), np.flatnonzero(flat == 0.0)
    if not (len(failures) and len(healthy)):
        with pytest.raises(PluginError):
            filled(outcomes, most).rows("mine")
        return
    rows = filled(outcomes, most).rows("mine")
    assert rows.features[rows.failed, 0].tolist() == failures.tolist()
    selected = rows.features[~rows.failed, 0]
    assert set(selected) <= set(healthy)
    assert len(selected) == min(most, len(healthy))
    assert rows.share == len(selected) / len(healthy)
    assert (np.diff(rows.at_ns) >= 0).all()


def test_the_same_seed_keeps_the_same_rows_and_another_one_others():
    one, again, other = (
        filled([[1.0], *[[0.0] * 10] * 50], 50, seed).rows("mine").features for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_each_moment_has_the_same_chance_to_be_sampled():
    outcomes = [[1.0], *[[0.0] * 10] * 50]
    selected = [filled(outcomes, 50, seed).rows("mine").at_ns[1:] // DAY_NS for seed in range(200)]
    early = np.mean(np.concatenate(selected) <= 25)
    assert early == pytest.approx(0.5, abs=0.02)


def test_features_shared_by_predictors_are_computed_once(monkeypatch):
    computed = []
    compute = Features.compute
    monkeypatch.setattr(Features, "compute", lambda *of: computed.append(of) or compute(*of))
    features = Features(half_lives_s=(86_400.0,), attributes=("size",))
    view = view_of(workers=2, labels=({"size": 1.0, "owner": "a"}, {"size": 2.0, "owner": "b"}))
    example = Example(view=view, outcome=np.array([0.0, 1.0]))
    beside = RowGathering(features, max_healthy=100, seed=0)
    beside.add(example)
    features.of(view.with_labels(labels_read(features.needs)))  # as the predictor is shown it
    beside.add(example)
    assert len(computed) == 1


COLUMN = st.one_of(
    st.lists(st.sampled_from(of), min_size=12, max_size=12) for of in ([0.0, -0.0], [1.0, np.nan])
)


@given(st.lists(COLUMN, min_size=1, max_size=8))
def test_each_varying_column_is_informative_once_and_a_constant_one_never(columns):
    features = np.array(columns).T
    rows = Rows(features, np.arange(12) > 5, np.arange(12), share=1.0)
    informative = rows.informative.tolist()
    varies = [len(np.unique(column)) > 1 for column in columns]
    assert all(varies[place] for place in informative) or (informative == [0] and not any(varies))
    for place in np.flatnonzero(varies):
        at_or_before = [at for at in informative if at <= place]
        same = [np.array_equal(columns[at], columns[place], equal_nan=True) for at in at_or_before]
        assert sum(same) == 1
    np.testing.assert_array_equal(rows.narrowed.features, features[:, informative])


def test_two_columns_that_differ_in_one_row_are_both_informative():
    column = np.arange(10_000.0)
    other = column.copy()
    other[4_321] += 1.0
    rows = Rows(np.column_stack([column, column, other]), column > 9_000, np.arange(10_000), 1.0)
    assert rows.informative.tolist() == [0, 2]


def test_a_column_that_has_minus_nought_where_another_has_nought_repeats_it():
    column, other = np.array([[0.0, 1.0, 0.0, np.nan], [0.0, 1.0, -0.0, np.nan]])
    rows = Rows(np.column_stack([column, other]), column == 1.0, np.arange(4), share=1.0)
    assert rows.informative.tolist() == [0]


def test_an_empty_column_is_not_informative_and_without_any_the_first_is_used():
    nothing, same, varies = np.full(4, np.nan), np.ones(4), np.arange(4.0)
    for columns, expected in (((same, nothing, varies), [2]), ((nothing, same), [0])):
        rows = Rows(np.column_stack(columns), np.arange(4) > 2, np.arange(4), share=1.0)
        assert rows.informative.tolist() == expected


@pytest.mark.parametrize(
    ("failed", "both"), [([0, 1], True), ([0, 0], False), ([1, 1], False), ([], False)]
)
def test_rows_have_both_outcomes_if_some_failed_and_some_did_not(failed, both):
    failed = np.array(failed, dtype=bool)
    rows = Rows(np.zeros((len(failed), 1)), failed, np.zeros(len(failed), dtype=int), share=1.0)
    assert rows.has_both_outcomes is both


def test_what_is_usual_is_the_median_of_those_that_did_not_fail_if_most_know_it():
    features = [[1, np.nan, 1], [3, 5, 2], [8, 6, np.nan], [10, np.nan, 4], [99, 7, 9]]
    failed = np.array([False, False, False, False, True])
    usual = Rows(np.array(features, dtype=float), failed, np.arange(5), share=1.0).usual
    np.testing.assert_array_equal(usual, [5.5, np.nan, 2.0])


def test_a_season_that_did_not_recur_is_nan_in_the_rows():
    features = Features(half_lives_s=(86_400.0,), seasons_s=(86_400.0, 604_800.0))
    gathering = RowGathering(features, max_healthy=100, seed=0)
    for hour in range(0, 24 * 6, 7):
        view = view_of(workers=2, now_s=hour * 3600.0)
        gathering.add(Example(view=view, outcome=np.array([0.0, 1.0])))
    unknown = np.isnan(gathering.rows("mine").features).all(axis=0)
    season = ["period" in name for name in features.names]
    assert unknown[season].tolist() == [False, False, True, True]


def test_workers_left_or_gone_are_in_no_row_and_the_sample_is_limited():
    gathering = RowGathering(Features(half_lives_s=(86_400.0,)), max_healthy=2, seed=7)
    view = view_of(workers=8, state=["left", "gone", *["training"] * 6])
    gathering.add(Example(view=view, outcome=np.array([1.0, 1.0, 1.0, *[0.0] * 5])))
    rows = gathering.rows("mine")
    assert (int(rows.failed.sum()), len(rows.failed)) == (1, 1 + 2)


def test_memory_does_not_grow_with_the_examples():
    sample = RowSample(100, 0)
    most = 0
    for day in range(500):
        sample.add(day, np.zeros((50, 3)), np.zeros(50))
        most = max(most, sum(len(draws) for draws, *_ in sample._parts))
    assert most <= 100 + 100 + 50


def test_the_later_part_begins_a_horizon_after_the_earlier_ends():
    rows = filled([[1.0, 0.0]] * 101).rows("mine")
    earlier, later = rows.split(0.2, 7 * 86_400.0)
    assert later.at_ns.min() == 80 * DAY_NS
    assert earlier.at_ns.max() == 72 * DAY_NS
    assert later.failed.sum() == 21


def test_the_time_is_cut_by_its_length_from_the_first_row_to_the_last():
    at_ns = np.array([100, 103, 104, 107, 110, 120]) * DAY_NS
    earlier, later = Rows(np.zeros((6, 1)), at_ns > 0, at_ns, share=0.25).split(0.5, 0.0)
    assert (earlier.at_ns // DAY_NS).tolist() == [100, 103, 104, 107]
    assert (later.at_ns // DAY_NS).tolist() == [110, 120]
    assert earlier.share == later.share == 0.25


def test_of_no_rows_both_parts_are_empty():
    rows = filled([[1.0, 0.0]] * 10).rows("mine")
    nothing, _ = rows.split(0.5, 100 * 86_400.0)
    assert [len(part.failed) for part in nothing.split(0.5, 0.0)] == [0, 0]


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ([], "mine: need a failure to learn from, was none in 0 labelled moments of workers"),
        (
            [[0.0, np.nan]],
            "mine: need a failure to learn from, was none in 1 labelled moments of workers",
        ),
        ([[1.0]], "mine: need healthy workers to learn from, was none besides 1"),
    ],
)
def test_examples_with_nothing_to_learn_are_refused(outcomes, message):
    with pytest.raises(PluginError) as refusal:
        filled(outcomes).rows("mine")
    assert str(refusal.value).startswith(message)


X = np.random.default_rng(0).normal(size=(200, 3))
Y = X[:, 0] > 0.5
TREES = ("sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",)


def grown(kind):
    return (kind(random_state=0, max_iter=20)).fit(X, Y)


@pytest.mark.parametrize("kind", [HistGradientBoostingClassifier, LogisticRegression])
def test_an_estimator_is_the_same_bytes_at_any_place_and_time(kind):
    first = estimator_bytes(grown(kind))
    in_the_way = [np.zeros(n) for n in range(100)]
    assert estimator_bytes(grown(kind)) == first
    assert len(in_the_way) == 100
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {1980}


@pytest.mark.parametrize("kind", [HistGradientBoostingClassifier, LogisticRegression])
def test_an_estimator_comes_back_to_the_bit(kind):
    estimator = grown(kind)
    again = estimator_part({"a": estimator_bytes(estimator)}, "a", (*TREES, "numpy.dtype"))
    assert again.predict_proba(X).tolist() == estimator.predict_proba(X).tolist()
    assert estimator_bytes(again) == estimator_bytes(estimator)


def test_an_estimator_that_is_not_trusted_or_damaged_is_refused():
    data = estimator_bytes(grown(HistGradientBoostingClassifier))
    for parts, trusted, message in (
        ({"a": data}, (), "a: need trusted types only: Untrusted types"),
        ({"a": data[:500]}, TREES, "a: need an estimator serialised by skops"),
        ({}, TREES, "a: need this part of a fitted model, was none"),
    ):
        with pytest.raises(ModelError) as refusal:
            estimator_part(parts, "a", trusted)
        assert str(refusal.value).startswith(message)
        assert "\n" not in str(refusal.value)


class Card(msgspec.Struct):
    share: float


def test_a_part_in_json_is_what_it_should_be_or_refused():
    assert json_part({"card.json": b'{"share": 0.5}'}, "card.json", Card) == Card(share=0.5)
    for data in (b'{"share": "much"}', b"{", b"{}"):
        with pytest.raises(ModelError, match=r"card.json: need Card as JSON: "):
            json_part({"card.json": data}, "card.json", Card)


SCRIPT = """
import sys
from sklearn.linear_model import LogisticRegression
from torchloom_core.lab.learning import estimator_bytes, estimator_part
estimator = LogisticRegression().fit([[0.0], [1.0]], [False, True])
estimator_part({"it": estimator_bytes(estimator)}, "it", ())
print("torch" in sys.modules)
import torch
print(torch.zeros(1).tolist())
"""


@pytest.mark.long
@pytest.mark.integration
def test_an_estimator_is_serialised_and_read_without_importing_torch():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["False", "[0.0]"]


def test_loaded_libraries_use_one_thread_meanwhile():
    seen = []

    def loss(at):
        seen.extend(library["num_threads"] for library in threadpool_info())
        return float(((at - 3.0) ** 2).sum()), 2.0 * (at - 3.0)

    assert np.allclose(minimum(loss, np.zeros(2)).x, 3.0)
    assert seen
    assert set(seen) == {1}


def test_bounds_are_respected():
    def loss(at):
        return float(((at - 3.0) ** 2).sum()), 2.0 * (at - 3.0)

    found = minimum(loss, np.zeros(2), bounds=[(-1.0, 1.0), (None, None)])
    assert np.allclose(found.x, [1.0, 3.0])


NAN = np.nan
anything = st.floats(allow_nan=True, allow_infinity=True)


def test_the_spread_of_a_gaussian_is_its_standard_deviation():
    rows = np.random.default_rng(0).normal(5.0, 3.0, size=(20_000, 1))
    rows[:2000] = NAN
    scale = Scale.of(rows)
    assert scale.middle == pytest.approx([5.0], abs=0.1)
    assert scale.spread == pytest.approx([3.0], rel=0.03)


def test_a_tenth_of_outliers_hardly_moves_it():
    rows = np.random.default_rng(0).normal(5.0, 3.0, size=(20_000, 1))
    rows[::10] = 1e9
    scale = Scale.of(rows)
    assert scale.middle == pytest.approx([5.0], abs=0.6)
    assert scale.spread == pytest.approx([3.0], rel=0.3)


def test_a_column_that_mostly_rests_has_its_standard_deviation_for_spread():
    rows = np.zeros((1000, 1))
    rows[:50] = 8.0
    assert Scale.of(rows).spread == pytest.approx([rows.std()])


def test_any_change_of_a_column_that_never_moved_is_many_spreads():
    scale = Scale.of(np.full((100, 2), [1000.0, 0.0]))
    off = scale.spreads_off(np.array([[1000.0 + 1e-9, 0.0], [1001.0, 1e-3]]))
    assert (np.abs(off[0]) < 1).all()
    assert (off[1] > 100).all()


@pytest.mark.parametrize("other", [1.0, NAN])
def test_a_column_without_values_stays_nan(other):
    scale = Scale.of(np.array([[NAN, other], [NAN, other]]))
    unknown = np.isnan(scale.spreads_off(np.ones((3, 2))))
    assert unknown.tolist() == [[True, np.isnan(other)]] * 3


@given(arrays(float, (4, 7), elements=anything), st.integers(min_value=1, max_value=9))
def test_the_mean_of_each_step_is_that_of_its_samples(window, steps):
    means = step_means(window, steps)
    assert means.shape == (4, steps)
    step_of = np.arange(7) * steps // 7
    for row, step in np.ndindex(4, steps):
        samples = window[row, step_of == step]
        samples = samples[np.isfinite(samples)]
        with np.errstate(over="ignore"):
            mean = samples.sum() / len(samples) if len(samples) else NAN
        expected = mean if np.isfinite(mean) else NAN
        assert means[row, step] == pytest.approx(expected, nan_ok=True, rel=1e-6, abs=1e291)


ARRAYS = {"wide": np.arange(6.0).reshape(2, 3).T, "none": np.empty((0, 4))}


def test_arrays_are_returned_in_the_given_order_whatever_their_layout():
    data = arrays_bytes(ARRAYS)
    assert data == arrays_bytes({name: ARRAYS[name].copy() for name in reversed(ARRAYS)})
    none, wide = arrays_part({"a": data}, "a", {"none": (None, 4), "wide": (3, 2)})
    assert none.shape == (0, 4)
    assert wide.tolist() == ARRAYS["wide"].tolist()


@pytest.mark.parametrize(
    ("parts", "shapes", "message"),
    [
        ({}, {}, "a: need this part of a fitted model, was none"),
        ({"a": b"?"}, {}, "a: need arrays serialised by safetensors: "),
        ({"a": arrays_bytes(ARRAYS)[:-1]}, {}, "a: need arrays serialised by safetensors: "),
        ({"a": arrays_bytes(ARRAYS)}, {"low": (2,)}, "a: need an array low, was none"),
        (
            {"a": arrays_bytes(ARRAYS)},
            {"wide": (None, 3)},
            r"a: need wide of shape any x 3, was \(3, 2\)",
        ),
        ({"a": arrays_bytes(ARRAYS)}, {"wide": (6,)}, r"a: need wide of shape 6, was \(3, 2\)"),
    ],
)
def test_arrays_that_are_not_what_is_wanted_are_refused(parts, shapes, message):
    with pytest.raises(ModelError, match=message):
        arrays_part(parts, "a", shapes)


def test_the_healthy_rows_are_there_though_nothing_failed():
    sample = RowSample(100, seed=0)
    sample.add(0, np.array([[1.0], [2.0], [3.0]]), np.array([0.0, 1.0, np.nan]))
    sample.add(1, np.array([[4.0]]), np.array([0.0]))
    assert sample.healthy("x").tolist() == [[1.0], [4.0]]


@pytest.mark.parametrize("outcomes", [[], [[1.0, np.nan]]])
def test_without_a_healthy_row_there_is_nothing_usual(outcomes):
    sample = RowSample(100, seed=0)
    for outcome in outcomes:
        sample.add(0, np.zeros((2, 1)), np.array(outcome))
    with pytest.raises(PluginError, match="x: need healthy workers to learn from"):
        sample.healthy("x")
