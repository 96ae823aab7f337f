import sys

import numpy as np
import pytest
from lightgbm import LGBMClassifier

from torchloom_core.lab.learning import Rows
from torchloom_core.plugin import ConfigError, ModelError
from torchloom_predictors.boosting import BoostingPredictor
from torchloom_predictors.lightgbm_trees import LightGBMTrees

COLUMNS = 3


def rows(seed=0):
    """Return rows of which the first column decides most, and the second is often unknown."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(2000, COLUMNS))
    failed = features[:, 0] + random.normal(size=2000) > 1.5
    features[random.random(2000) < 0.2, 1] = np.nan
    return Rows(features, failed, np.arange(2000), share=1.0)


def grown(seed=0):
    return LightGBMTrees.grow(rows(), 5, None, 20, num_leaves=4, learning_rate=0.2, seed=seed)


@pytest.fixture(scope="module")
def text():
    return grown().text


def restored(text):
    return LightGBMTrees.restore(text.encode(), COLUMNS, "boosting.txt")


def test_forecasts_equal_those_of_lightgbm_exactly(text):
    learned, features = rows(), rows(seed=1).features
    usual = LGBMClassifier(n_estimators=5, num_leaves=4, learning_rate=0.2, verbose=-1)
    usual.fit(learned.features, learned.failed)
    expected = usual.booster_.predict(features, raw_score=True)
    assert np.array_equal(restored(text).decision_function(features), expected)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("left_child=1", "left_child=3"),  # the tree has inner nodes 0 to 2
        ("left_child=1", "left_child=0"),  # a circle
        ("left_child=1", "left_child=-5"),  # and leaves -1 to -4
        ("split_feature=0", "split_feature=3"),
        ("split_feature=0", "split_feature=-1"),
        ("decision_type=10", "decision_type=9"),  # a choice by category
        ("threshold=", "threshold=0.5 "),
    ],
)
def test_trees_that_point_outside_themselves_are_refused(text, was, becomes):
    assert was in text
    with pytest.raises(ModelError, match=r"^boosting.txt: need node and feature indices in range"):
        restored(text.replace(was, becomes, 1))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("left_child=1", "left_child=one"),
        ("left_child=1", "left_child=99999999999999999999"),
        ("left_child=1", "left_child=01"),
        ("left_child", "middle_child"),
        ("num_leaves=4", "num_leaves=400"),
        ("num_cat=0", "num_cat=1"),
        ("max_feature_idx=2", "max_feature_idx=-1"),
        ("\n\nTree=0", "\ntree_sizes=1000000\n\nTree=0"),
        ("\nthreshold", "\r\nthreshold"),
        ("end of trees", "Tree=5"),
        ("end of trees\n", ""),
        ("tree\n", "\xe9\n"),
    ],
)
def test_a_changed_text_is_refused(text, was, becomes):
    assert was in text
    with pytest.raises(
        ModelError, match=r"^boosting.txt: need LightGBM's text as torchLoom writes it"
    ):
        restored(text.replace(was, becomes, 1))


def test_trees_of_other_features_are_refused(text):
    with pytest.raises(ModelError, match="need LightGBM's text as torchLoom writes it"):
        LightGBMTrees.restore(text.encode(), COLUMNS + 1, "boosting.txt")


def test_without_lightgbm_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    message = (
        r"^predictors.boosting.library: need the extra lightgbm, "
        r"pip install 'torchloom\[lightgbm\]': "
    )
    with pytest.raises(ConfigError, match=message):
        BoostingPredictor(BoostingPredictor.Options(library="lightgbm"))
