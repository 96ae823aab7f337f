"""An error in one predictor while it gathers rows does not affect the others."""

import numpy as np
import pytest

from tests.fitting.plugins import Blind, Heat, info
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.fitting.examples import SharedRows
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.learning import GatheredLearner, RowSample
from torchloom_core.plugin import Example
from torchloom_core.testing import view_of


class Sample:
    def __init__(self):
        self.sample = RowSample(max_healthy=1000, seed=0)

    def add(self, example):
        self.sample.add(example.view.now_ns, np.zeros((len(example.view), 1)), example.outcome)

    def rows(self, predictor):
        return self.sample.rows(predictor)


class Gathers(GatheredLearner, Blind):
    name = "gathers"
    sampled: object = "gathers"
    learned = 0

    def gathering(self):
        return Sample()

    def learn(self, rows):
        self.learned = len(rows.failed)

    def parts(self):
        return {}

    def restore(self, parts):
        pass


class Leaves(Gathers):
    name = "leaves"
    sampled = "leaves"

    def gathering(self):
        gathering = Sample()
        gathering.add = lambda _: exit(0)
        return gathering


class Refuses(Gathers):
    name = "refuses"
    sampled = "refuses"

    def gathering(self):
        raise RuntimeError("no\nroom")


class Unhashable(Gathers):
    name = "unhashable"
    sampled: object = []


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Leaves, "cannot fit: SystemExit: 0"),
        (Refuses, "cannot fit: RuntimeError: no room"),
        (Unhashable, "cannot fit: TypeError: unhashable type: 'list'"),
    ],
)
def test_an_error_while_gathering_is_an_error_and_for_a_baseline_a_limit(
    bundle, settings, cls, why
):
    with pytest.raises(PluginError) as error:
        fit(bundle, info(cls), {}, settings)
    assert str(error.value) == f"predictor {cls.name}: {why}"
    beside = info(type("one_rule", (cls,), {"name": "one_rule"}))
    card = fit(bundle, info(Heat), {}, settings, baselines=[beside]).card
    learned_nothing = f"The baseline one_rule could not be fitted: predictor one_rule: {why}."
    assert learned_nothing in card.limits


def test_what_one_breaks_others_learn_all_the_same_and_see_it_unspoilt():
    class Spoils(Gathers):
        name = "spoils"
        sampled = "spoils"

        def gathering(self):
            gathering = Sample()
            gathering.add = lambda example: example.view.knob_specs.update(mine=None)
            return gathering

    view = view_of(workers=4)
    learners = [cls(cls.Options()) for cls in (Leaves, Spoils, Gathers)]
    rows = SharedRows(learners)
    rows.add(Example(view=view, outcome=np.array([0.0, 1.0, 0.0, np.nan])))
    assert "mine" not in view.knob_specs
    rows.fit(learners[-1], again=False)
    assert learners[-1].learned == 3
    with pytest.raises(PluginError, match="SystemExit"):
        rows.fit(learners[0], again=True)


def test_what_broke_as_it_gathered_is_shown_no_more():
    shown = []

    class Breaks(Gathers):
        def gathering(self):
            gathering = Sample()
            gathering.add = lambda example: shown.append(example) or {}["none"]
            return gathering

    rows = SharedRows([Breaks(Breaks.Options())])
    for _ in range(3):
        rows.add(Example(view=view_of(workers=2), outcome=np.array([0.0, 1.0])))
    assert len(shown) == 1


def test_a_refit_calls_learn_again():
    taught = []

    class Notes(Gathers):
        def learn(self, rows):
            taught.append("learn")

        def learn_again(self, rows):
            taught.append("learn again")

    learner = Notes(Notes.Options())
    for again in (False, True):
        rows = SharedRows([learner])
        rows.add(Example(view=view_of(workers=2), outcome=np.array([0.0, 1.0])))
        rows.fit(learner, again=again)
    assert taught == ["learn", "learn again"]


class Given(Gathers):
    name = "given"

    def learn(self, rows):
        self.rows = rows


def test_learners_of_ours_are_given_the_same_rows_and_of_more_examples_more(monkeypatch):
    monkeypatch.setattr(Given, "__module__", "torchloom_predictors.given")
    learners = [Given(Given.Options()) for _ in range(3)]
    shared = SharedRows(learners)
    example = Example(view=view_of(workers=2), outcome=np.array([0.0, 1.0]))
    for count, learner in enumerate(learners):
        if count < 2:
            shared.add(example)
        shared.fit(learner, again=False)
    first, second, third = (learner.rows for learner in learners)
    assert len(first.failed) == 2
    assert len(second.failed) == 4
    assert second is third


def test_a_third_party_learner_gets_a_copy_of_the_rows():
    class Imputes(Given):
        def learn(self, rows):
            super().learn(rows)
            rows.features[:] = rows.narrowed.features[:] = 7.0
            rows.failed[:] = rows.informative[:] = True

    learners = [cls(cls.Options()) for cls in (Imputes, Given, Imputes, Given)]
    shared = SharedRows(learners)
    shared.add(Example(view=view_of(workers=2), outcome=np.array([0.0, 1.0])))
    for learner in learners:
        shared.fit(learner, again=False)
        rows = learner.rows
        if type(learner) is Given:
            assert rows.features.tolist() == rows.narrowed.features.tolist() == [[0.0], [0.0]]
            assert (rows.failed.tolist(), rows.informative.tolist()) == ([False, True], [0])


def test_another_gathering_is_not_shared_though_its_key_is_equal():
    class Turned(Given):
        def gathering(self):
            gathering = Sample()
            gathering.add = lambda example: Sample.add(gathering, turned(example))
            return gathering

    def turned(example):
        example.outcome[:] = 1.0 - example.outcome
        return example

    learners = [cls(cls.Options()) for cls in (Turned, Given)]
    shared = SharedRows(learners)
    shared.add(Example(view=view_of(workers=3), outcome=np.array([0.0, 0.0, 1.0])))
    for learner in learners:
        shared.fit(learner, again=False)
    other, own = (learner.rows.failed.tolist() for learner in learners)
    assert other == [True, True, False]
    assert own == [False, False, True]
