import io
import zipfile
from typing import ClassVar

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_info

from tests.predictors import warming_fleet
from tests.predictors.warming_fleet import WORKERS, comes_true, one_hot, warming
from torchloom_core.lab.learning import Rows, estimator_bytes
from torchloom_core.plugin import Example, ModelError, PluginError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.boosting import BoostingPredictor

pytestmark = pytest.mark.slow


class TestContract(LearnerContract):
    predictor_class = BoostingPredictor
    options: ClassVar = {"metrics": ["temp"], "spans_s": [5.0, 20.0], "min_leaf_rows": 5}


class TestContractWithLightGBM(TestContract):
    options: ClassVar = {**TestContract.options, "library": "lightgbm"}


def predictor(**options):
    return warming_fleet.predictor(BoostingPredictor, **{"learning_rate": 0.2, **options})


@pytest.fixture(scope="module", params=["scikit-learn", "lightgbm"])
def library(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(library):
    learner = predictor(library=library)
    learner.fit(warming())
    return learner


def rows_of(features, failed):
    """Return rows of one column, a second apart."""
    at_ns = np.arange(len(failed)) * 10**9
    return Rows(np.array(features, dtype=float)[:, None], np.array(failed), at_ns, share=1.0)


def test_it_finds_what_warns_and_its_probabilities_come_true(fitted):
    comes_true(fitted, better=10)


def test_the_reason_is_the_feature_without_which_it_would_be_judged_better(fitted):
    hazard = fitted.forecast(one_hot())
    assert hazard.probability.argmax() == 3
    assert "temp" in hazard.why[3]
    assert "usual is 6" in hazard.why[3]
    assert all(hazard.probability[row] > fitted._learned.prior for row in hazard.why)


def test_a_sample_of_the_healthy_keeps_the_prior(library):
    unforeseen = warming(warns=False)
    sampled = predictor(max_healthy=500, library=library)
    sampled.fit(unforeseen)
    true = np.mean([e.outcome for e in unforeseen])
    assert sampled._learned.share < 0.15
    assert sampled._learned.prior == pytest.approx(true)
    predicted = np.mean([sampled.forecast(e.view).probability for e in warming(seed=2)])
    assert predicted == pytest.approx(true, rel=0.4)


def test_what_cannot_be_checked_in_later_time_gets_few_trees(library):
    learner = predictor(library=library)
    early = [Example(view=e.view, outcome=e.outcome * (i < 40)) for i, e in enumerate(warming())]
    learner.fit(early)
    assert learner._trees.n_iter_ == 50


def test_a_metric_without_samples_in_training_does_not_matter(library):
    learner = predictor(metrics=("temp", "noise", "later"), library=library)
    nothing = {"later": np.full((WORKERS, 10), np.nan)}
    learner.fit(Example(view=_with(e.view, nothing), outcome=e.outcome) for e in warming()[:60])
    view = warming(seed=1)[0].view
    with_later = _with(view, {"later": np.full((WORKERS, 10), 7.0)})
    without = _with(view, nothing)
    assert learner.forecast(with_later).probability == pytest.approx(
        learner.forecast(without).probability, abs=0
    )


def test_a_first_missing_value_follows_the_majority_of_rows(library):
    learner = predictor(library=library, max_trees=10)
    low = np.arange(1000) % 10 == 0
    trees = learner.grow(rows_of(np.where(low, 0.0, 50.0), low))
    zero, usual, unknown = learner.log_odds(trees, np.array([[0.0], [50.0], [np.nan]]))
    assert unknown == usual < zero


@pytest.mark.parametrize(
    "option",
    [{"learning_rate": 0.1}, {"max_trees": 4}, {"max_leaves": 4}, {"min_leaf_rows": 60}, {"l2": 9}],
)
def test_no_option_is_lost_on_either_library(library, option):
    values = np.random.default_rng(0).normal(size=500)
    rows = rows_of(values, np.sin(9 * values) > 0)
    usual, other = (
        predictor(library=library, **{"max_trees": 5, **options}) for options in ({}, option)
    )
    predicted = usual.log_odds(usual.grow(rows), rows.features)
    assert np.abs(other.log_odds(other.grow(rows), rows.features) - predicted).max() > 0.01


def test_twenty_trees_in_vain_are_the_last(library):
    learner = predictor(library=library, max_trees=30)
    known = np.random.default_rng(0).normal(size=2000)
    later_differs = np.where(np.arange(2000) < 1500, known > 1, known < -1)
    trees = learner.grow(rows_of(known, later_differs))
    assert trees.n_iter_ in (20, 21)  # scikit-learn also looks at none


def _with(view, more):
    metrics = {metric: view.window(metric, 10) for metric in ("temp", "noise")}
    return view_of({**metrics, **more}, now_s=view.now_s)


def test_workers_left_or_gone_get_no_forecast_and_are_not_learned_from(fitted):
    view = view_of(
        {"temp": np.full((3, 10), 66.0), "noise": np.zeros((3, 10))},
        state=["gone", "left", "training"],
    )
    assert np.isnan(fitted.forecast(view).probability).tolist() == [True, True, False]
    with pytest.raises(PluginError, match="need a failure to learn from"):
        predictor().fit([Example(view=view, outcome=np.array([1.0, 1.0, 0.0]))])


def test_a_model_of_the_other_library_is_refused(fitted, library):
    other, part = {
        "scikit-learn": ("lightgbm", "boosting.txt"),
        "lightgbm": ("scikit-learn", "boosting.skops"),
    }[library]
    with pytest.raises(ModelError, match=f"{part}: need this part of a fitted model"):
        predictor(library=other).restore(fitted.parts())


@pytest.mark.parametrize("library", ["scikit-learn"], indirect=True)
@pytest.mark.parametrize(
    ("field", "value"),
    [("left", 10_000), ("feature_idx", 10_000), ("feature_idx", -(2**28)), ("is_categorical", 1)],
)
def test_trees_that_point_outside_themselves_are_refused(fitted, field, value):
    parts = dict(fitted.parts())
    spoilt = predictor()
    spoilt.restore(parts)
    spoilt._trees._predictors[0][0].nodes[field][0] = value
    with pytest.raises(ModelError, match="need node and feature indices in range"):
        predictor().restore({**fitted.parts(), "boosting.skops": estimator_bytes(spoilt._trees)})


@pytest.mark.parametrize("library", ["scikit-learn"], indirect=True)
def test_an_archive_with_a_foreign_type_is_refused(fitted):
    parts = dict(fitted.parts())
    rewritten = io.BytesIO()
    old = zipfile.ZipFile(io.BytesIO(parts["boosting.skops"]))
    with old, zipfile.ZipFile(rewritten, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b'"TreePredictor"', b'"Popen"'))
    parts["boosting.skops"] = rewritten.getvalue()
    with pytest.raises(ModelError, match=r"boosting.skops: need trusted types only") as refusal:
        predictor().restore(parts)
    assert "\n" not in str(refusal.value)


def test_trees_grow_on_one_thread_though_the_library_comes_only_as_they_do(monkeypatch):
    seen = []

    def fit(self, *_, **__):
        seen.extend(one["num_threads"] for one in threadpool_info() if one["user_api"] == "openmp")
        return self

    monkeypatch.setattr(HistGradientBoostingClassifier, "fit", fit)
    # What learn() limits is what is loaded by then, and nothing does that here.
    predictor()._boost(rows_of([1.0, 2.0, 3.0], [False, True, False]), trees=2)
    assert seen
    assert set(seen) == {1}
