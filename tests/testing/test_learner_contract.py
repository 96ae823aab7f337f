"""The contract for predictors that learn detects those that break a rule."""

import io
import pickle
import time

import msgspec
import numpy as np
import pytest
import torch

from tests.testing.rules import broken_rules
from torchloom_core.floor.errors import ModelError, PluginError
from torchloom_core.plugin import Hazard, Need
from torchloom_core.testing import LearnerContract
from torchloom_core.testing.learner_contract import holds_pickle


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Good:
    """Estimates how often workers with such a loss failed."""

    name = "good"
    Options = Options
    needs = (Need("loss", 5.0),)
    horizon_s = 60.0
    every_s = 5.0
    share = np.nan

    def __init__(self, options):
        pass

    def losses(self, view):
        return view.window("loss", 5.0)[:, -1]

    def rows(self, example):
        known = ~np.isnan(example.outcome)
        return example.outcome[known], self.losses(example.view)[known] > 52

    def fit(self, examples):
        self.learn([self.rows(example) for example in examples])

    def learn(self, rows):
        outcomes = np.concatenate([outcome for outcome, _ in rows]) if rows else np.empty(0)
        if not outcomes.any():
            raise PluginError("good: need a failure to learn from, was none")
        self.share = float(outcomes[np.concatenate([high for _, high in rows])].mean())

    def forecast(self, view):
        probability = np.where(self.losses(view) > 52, self.share, np.nan)
        return Hazard(probability=probability)

    def parts(self):
        return {"share.json": msgspec.json.encode({"share": self.share})}

    def restore(self, parts):
        try:
            self.share = msgspec.json.decode(parts["share.json"])["share"]
        except (KeyError, msgspec.MsgspecError) as error:
            raise ModelError(str(error)) from error


class Unready(Good):
    share = 2.0


class Pickler(Good):
    def parts(self):
        return {"share.pkl": pickle.dumps(self.share)}

    def restore(self, parts):
        try:
            self.share = pickle.loads(parts["share.pkl"])
        except (KeyError, pickle.UnpicklingError) as error:
            raise ModelError(str(error)) from error


class Outside(Good):
    def parts(self):
        return {"../share.json": super().parts()["share.json"]}

    def restore(self, parts):
        super().restore({"share.json": parts.get("../share.json", b"")})


class Dicing(Good):
    def learn(self, rows):
        super().learn(rows)
        self.share *= np.random.default_rng().random()


class Forgetful(Good):
    def restore(self, parts):
        super().restore(parts)
        self.share = round(self.share, 3)


class Gullible(Good):
    def restore(self, parts):
        super().restore({"share.json": b'{"share": 0.5}', **parts})


class Accumulating(Good):
    seen = 0

    def forecast(self, view):
        self.seen += 1
        return Hazard(probability=np.full(len(view), 1 - 1 / self.seen))


class Clinging(Good):
    """Stores the arrays of past views, which are overwritten before it learns."""

    def fit(self, examples):
        kept = [(example.outcome, self.losses(example.view)) for example in examples]
        rows = []
        for outcome, losses in kept:
            known = ~np.isnan(outcome)
            rows.append((outcome[known], losses[known] > 52))
        self.learn(rows)


class Vandal(Good):
    def fit(self, examples):
        kept = list(examples)
        super().fit(kept)
        kept[0].outcome[:] = 1.0


class Guessing(Good):
    """Treats unknown outcomes as healthy."""

    def rows(self, example):
        return np.nan_to_num(example.outcome), self.losses(example.view) > 52


class Content(Good):
    def learn(self, rows):
        try:
            super().learn(rows)
        except PluginError:
            self.share = 0.0


class Dated(Good):
    def learn(self, rows):
        super().learn(rows)
        self.share += 0 * time.time()


@pytest.mark.slow
def test_a_valid_learner_passes_all_tests():
    assert broken_rules(LearnerContract, predictor_class=Good) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (Unready, "test_an_untrained_one_returns_a_forecast"),
        (Pickler, "test_its_parts_are_bytes_without_pickle"),
        (Outside, "test_its_parts_are_bytes_without_pickle"),
        (Dicing, "test_training_is_deterministic"),
        (Forgetful, "test_a_restored_one_forecasts_the_same_to_the_bit"),
        (Gullible, "test_parts_that_are_missing_or_damaged_are_refused"),
        (Accumulating, "test_a_forecast_depends_on_its_view_alone"),
        (Clinging, "test_it_copies_the_data_of_views"),
        (Vandal, "test_fitting_does_not_modify_the_views"),
        (Guessing, "test_unknown_outcomes_have_no_effect"),
        (Content, "test_nothing_to_learn_from_is_an_error"),
        (Dated, "test_it_learns_without_a_clock"),
    ],
)
def test_a_learner_that_breaks_a_rule_fails_the_test_of_that_rule(cls, rule):
    assert rule in broken_rules(LearnerContract, predictor_class=cls)


@pytest.mark.slow
def test_one_that_needs_outcomes_is_not_unsupervised():
    broken = broken_rules(LearnerContract, predictor_class=Good, supervised=False)
    assert broken == {"test_nothing_to_learn_from_is_an_error"}


def saved(save, *what):
    file = io.BytesIO()
    save(*what, file) if save is torch.save else save(file, *what)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([1, 2]),
        pickle.dumps({"a": np.zeros(3)}, protocol=0),
        saved(torch.save, {"weight": torch.zeros(2)}),
        saved(np.save, np.array([{}], dtype=object)),
        saved(np.savez, np.zeros(2), np.array([{}], dtype=object)),
    ],
)
def test_a_pickle_is_found_in_every_container(data):
    assert holds_pickle(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b'{"a": 1}',
        b"No pickle.",
        saved(np.save, np.zeros(3)),
        saved(np.savez, np.zeros(3)),
    ],
)
def test_what_is_no_pickle_is_none(data):
    assert not holds_pickle(data)
