"""The shipped contracts detect plugins that break a rule."""

import datetime
import random
import time
from time import monotonic

import msgspec
import numpy as np
import pytest

from tests.testing.rules import broken_rules
from torchloom_core.plugin import Alert, Hazard, Need, Proposal
from torchloom_core.testing import PolicyContract, PredictorContract


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Good:
    name = "good"
    Options = Options
    needs = (Need("loss", 5.0),)

    def __init__(self, options):
        self.ticks = 0

    def on_tick(self, view):
        self.ticks += 1
        for row in np.flatnonzero(view.window("loss", 5.0)[:, -1] > 52):
            yield alert(view, row)


def alert(view, row=0, **price):
    return Proposal(action=Alert(worker=view.workers[row], text="x"), reason="high", **price)


class Nameless(Good):
    name = "not an identifier"


class Melting(Good):
    class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
        pass


class Lenient(Good):
    class Options(msgspec.Struct, frozen=True, kw_only=True):
        pass


class Undeclared(Good):
    def on_tick(self, view):
        view.latest("gpu_temp_celsius")
        return ()


class TooFarBack(Good):
    def on_tick(self, view):
        view.window("loss", 50.0)
        return ()


class Babbler(Good):
    def on_tick(self, view):
        return ["migrate"]


class Infinite(Good):
    def on_tick(self, view):
        return [alert(view, gain_gpu_s=float("inf"))] if len(view) else []


class Dicing(Good):
    def on_tick(self, view):
        return [alert(view, confidence=random.random())] if len(view) else []


class FixedSize(Good):
    def on_tick(self, view):
        np.add(np.zeros(6), view.latest("loss"))
        return ()


class FirstWorker(Good):
    def on_tick(self, view):
        return iter(view.workers[0] and ())


class Vandal(Good):
    def on_tick(self, view):
        view.step = view.step + 1
        return ()


class KnobVandal(Good):
    def on_tick(self, view):
        if len(view):
            view._knob_values[0]["lr"] = 0.5
        return ()


class ByModule(Good):
    def on_tick(self, view):
        time.time()
        return ()


class ByName(Good):
    def on_tick(self, view):
        monotonic()
        return ()


class ByDate(Good):
    def on_tick(self, view):
        datetime.datetime.now(datetime.UTC)
        return ()


class SwallowingClock(Good):
    def on_tick(self, view):
        try:
            time.time_ns()
        except AssertionError:
            return ()
        return ()


def test_a_valid_policy_passes_all_tests():
    assert broken_rules(PolicyContract, policy_class=Good) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (Nameless, "test_its_name_and_options_fit_the_config"),
        (Melting, "test_its_name_and_options_fit_the_config"),
        (Lenient, "test_its_name_and_options_fit_the_config"),
        (Undeclared, "test_it_declares_what_it_reads"),
        (TooFarBack, "test_it_declares_what_it_reads"),
        (Babbler, "test_its_proposals_are_valid"),
        (Infinite, "test_its_proposals_are_valid"),
        (Dicing, "test_the_same_views_give_the_same_proposals"),
        (FixedSize, "test_it_declares_what_it_reads"),
        (FirstWorker, "test_an_empty_fleet_is_no_error"),
        (Vandal, "test_it_does_not_modify_the_view"),
        (KnobVandal, "test_it_does_not_modify_the_view"),
        (ByModule, "test_it_reads_no_clock"),
        (ByName, "test_it_reads_no_clock"),
        (ByDate, "test_it_reads_no_clock"),
        (SwallowingClock, "test_it_reads_no_clock"),
    ],
)
def test_a_policy_that_breaks_a_rule_fails_the_test_of_that_rule(cls, rule):
    assert rule in broken_rules(PolicyContract, policy_class=cls)


class GoodPredictor:
    name = "good"
    Options = Options
    needs = (Need("loss"),)
    horizon_s = 60.0
    every_s = 5.0

    def __init__(self, options):
        pass

    def forecast(self, view):
        return Hazard(probability=np.where(view.latest("loss") > 52, 1.0, np.nan))


class Endless(GoodPredictor):
    horizon_s = float("inf")


class ShortAnswer(GoodPredictor):
    def forecast(self, view):
        return Hazard(probability=np.zeros(3))


class TooSure(GoodPredictor):
    def forecast(self, view):
        return Hazard(probability=np.full(len(view), 1.5))


class WholeNumbers(GoodPredictor):
    def forecast(self, view):
        return Hazard(probability=np.zeros(len(view), dtype=int))


class BareArray(GoodPredictor):
    def forecast(self, view):
        return np.zeros(len(view))


class Moody(GoodPredictor):
    def forecast(self, view):
        return Hazard(probability=np.random.default_rng().random(len(view)))


class Late(GoodPredictor):
    def forecast(self, view):
        time.perf_counter()
        return super().forecast(view)


def test_a_valid_predictor_passes_all_tests():
    assert broken_rules(PredictorContract, predictor_class=GoodPredictor) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (Endless, "test_it_declares_what_it_reads_and_how_often"),
        (ShortAnswer, "test_it_gives_a_probability_for_every_row"),
        (TooSure, "test_it_gives_a_probability_for_every_row"),
        (WholeNumbers, "test_it_gives_a_probability_for_every_row"),
        (BareArray, "test_it_gives_a_probability_for_every_row"),
        (Moody, "test_the_same_views_give_the_same_hazards"),
        (Late, "test_it_reads_no_clock"),
    ],
)
def test_a_predictor_that_breaks_a_rule_fails_the_test_of_that_rule(cls, rule):
    assert rule in broken_rules(PredictorContract, predictor_class=cls)
