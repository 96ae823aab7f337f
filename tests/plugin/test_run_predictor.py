"""Each call of a predictor gives a forecast or an error in one line."""

import math
from typing import Any

import numpy as np
import pytest

from torchloom_core.interface.forecasting import run_predictor
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.fitted import FittedPredictor
from torchloom_core.plugin import FleetView, Hazard, NeedLabels
from torchloom_core.testing import view_of
from torchloom_core.wire.events import Forecast, PredictorFailed


class Predictor:
    name = "mine"
    needs = ()
    horizon_s = 60
    every_s = 5.0

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def forecast(self, view: FleetView) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


def run(answer: Any) -> Forecast | PredictorFailed:
    return run_predictor("f1", "mine", Predictor(answer), view_of(workers=3), lambda: 0.25)


def test_a_hazard_becomes_a_forecast_of_those_that_were_judged():
    hazard = Hazard(probability=np.array([0.5, math.nan, 1.0]), why={2: "hot"})
    assert run(hazard) == Forecast(
        id="f1",
        predictor="mine",
        horizon_s=60.0,
        hazard={"w0": 0.5, "w2": 1.0},
        why={"w2": "hot"},
        latency_s=0.25,
    )


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "need a Hazard, was NoneType None"),
        (Hazard(probability=None), "need float probabilities of shape (3,), was object ()"),
        (Hazard(probability=np.zeros(2)), "need float probabilities of shape (3,), was float64 (2"),
        (Hazard(probability=[1, 0, 1]), "need float probabilities of shape (3,), was int64 (3,)"),
        (Hazard(probability=np.full(3, 1.5)), "need probabilities in [0, 1], was 1.5"),
        (Hazard(probability=np.full(3, np.inf)), "need probabilities in [0, 1], was inf"),
        (Hazard(probability=np.zeros(3), why=None), "need why as a dict, was NoneType"),
        (Hazard(probability=np.zeros(3), why={3: "x"}), "need rows below 3 in why, was 3"),
        (Hazard(probability=np.zeros(3), why={-1: "x"}), "need rows below 3 in why, was -1"),
        (Hazard(probability=np.zeros(3), why={0: "\ud800"}), "need texts of at most 2000 char"),
        (Hazard(probability=np.zeros(3), why={0: "x" * 2001}), "need texts of at most 2000 char"),
    ],
)
def test_an_invalid_result_is_reported(answer, problem):
    failed = run(answer)
    assert isinstance(failed, PredictorFailed)
    assert failed.rule == "garbage"
    assert failed.detail.startswith(problem)
    assert "test_run_predictor.py:" in failed.detail


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), GeneratorExit()])
def test_a_predictor_that_raises_is_named_with_its_line(error):
    failed = run(error)
    assert isinstance(failed, PredictorFailed)
    assert failed.rule == "raised"
    assert failed.detail.startswith(f"{type(error).__name__}: ")
    assert "(test_run_predictor.py:" in failed.detail


def test_a_horizon_that_becomes_invalid_is_reported():
    predictor = Predictor(Hazard(probability=np.zeros(3)))
    for horizon_s in (math.nan, math.inf, -1.0, "long"):
        predictor.horizon_s = horizon_s
        failed = run_predictor("f1", "mine", predictor, view_of(workers=3), lambda: 0.25)
        assert isinstance(failed, PredictorFailed)


@pytest.mark.parametrize("probability", [[[1.0], [1.0, 2.0]], "often"])
def test_probabilities_that_are_no_array_are_a_failure(probability):
    assert isinstance(run(Hazard(probability=probability)), PredictorFailed)


def test_an_error_has_the_authors_file_also_for_a_fitted_model():
    wrapped = FittedPredictor(Predictor(ValueError("no")))
    result = run_predictor("f1", "mine", wrapped, view_of(workers=3), lambda: 0.25)
    assert isinstance(result, PredictorFailed)
    assert result.detail.startswith("ValueError: no (test_run_predictor.py:")


def calibrated(probability: Any) -> Forecast | PredictorFailed:
    half = Calibration(slope=0.5, intercept=-1.0)
    wrapped = FittedPredictor(Predictor(Hazard(probability=probability)), half)
    return run_predictor("f1", "mine", wrapped, view_of(workers=3), lambda: 0.25)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
def test_calibration_does_not_depend_on_the_float_precision(dtype):
    answer = np.array([0.0, 0.5, 1.0])
    assert calibrated(answer.astype(dtype)) == calibrated(answer)


@pytest.mark.parametrize("garbage", [np.full(3, 1.5), np.full(3, -np.inf), [0, 1, 1], np.zeros(2)])
def test_an_invalid_result_is_reported_before_the_calibration(garbage):
    result = calibrated(garbage)
    assert isinstance(result, PredictorFailed)
    assert result.rule == "garbage"
    assert result.detail == run(Hazard(probability=garbage)).detail


def test_masked_workers_have_no_forecast():
    masked = np.ma.array([0.5, 0.9, 1.0], mask=[False, True, False])
    for result in (run(Hazard(probability=masked)), calibrated(masked)):
        assert isinstance(result, Forecast)
        assert [*result.hazard] == ["w0", "w2"]


LABELS = ({"size": 4.0, "status": "retired"}, {"size": 8.0}, {})


class Reads(Predictor):
    """Stores the labels of its views."""

    def __init__(self, *names: str) -> None:
        super().__init__(Hazard(probability=np.zeros(3)))
        self.needs = (NeedLabels(names),) if names else ()
        self.seen: list[Any] = []

    def forecast(self, view: FleetView) -> Any:
        self.seen.append(view.labels)
        return super().forecast(view)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), ({}, {}, {})),
        (("size",), ({"size": 4.0}, {"size": 8.0}, {})),
        (("status", "size", "colour"), LABELS),
    ],
)
def test_a_predictor_sees_the_labels_that_it_declared(names, shown):
    predictor = Reads(*names)
    view = view_of(workers=3, labels=LABELS)
    for _ in range(2):
        view = view.twin()  # as at the next tick: the roster is the same
        run_predictor("f1", "mine", predictor, view, lambda: 0.25)
        assert view.labels == LABELS
    first, second = predictor.seen
    assert first == shown
    assert first is second


def test_a_shared_result_depends_on_the_labels_of_the_view():
    view = view_of(workers=3, labels=LABELS)
    result = view.once("labels", lambda view: view.labels)
    less = view.with_labels(("size",))
    assert less.once("labels", lambda view: view.labels) != result
    assert less is view.with_labels(("size",))
    assert view.with_labels(("size", "status")) is view
