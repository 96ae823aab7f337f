from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from torchloom_core.plugin import Example, ModelError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.temporal_conv import TemporalConvPredictor

pytestmark = pytest.mark.slow

TICKS, WORKERS, WINDOW, HORIZON = 120, 40, 16, 8


class TestContract(LearnerContract):
    predictor_class = TemporalConvPredictor
    options: ClassVar = {"metrics": ["a", "b"], "window_s": 16, "step_s": 2, "channels": 4}


class TestContractWithALaterPart(LearnerContract):
    predictor_class = TemporalConvPredictor
    options: ClassVar = {"metrics": ["a"], "window_s": 8, "step_s": 2, "horizon_s": 2}


def predictor(**options):
    wanted = {"metrics": ("temp",), "window_s": float(WINDOW), "step_s": 1.0, "channels": 8}
    rest = {"horizon_s": float(HORIZON), "every_s": 1.0}
    return TemporalConvPredictor(TemporalConvPredictor.Options(**{**wanted, **rest, **options}))


def fleet(seed, ticks=TICKS):
    """Return temperature, which sways before a failure and is as high as ever, and failures."""
    random = np.random.default_rng(seed)
    temp = 60 + random.normal(size=(WORKERS, ticks))
    fails = random.random((WORKERS, ticks)) < 0.004
    for worker, tick in np.argwhere(fails):
        start = max(0, tick - HORIZON)
        temp[worker, start:tick] = 60 + 2.0 * (-1.0) ** np.arange(tick - start)
    return temp, fails


def view(temp, tick):
    return view_of({"temp": temp[:, tick + 1 - WINDOW : tick + 1]}, now_s=1e9 + tick)


def examples(seed, **more):
    temp, fails = fleet(seed, **more)
    return [
        Example(
            view=view(temp, tick),
            outcome=fails[:, tick + 1 : tick + HORIZON + 1].any(axis=1).astype(float),
        )
        for tick in range(WINDOW, temp.shape[1] - HORIZON)
    ]


@pytest.fixture(scope="module")
def fitted():
    learner = predictor()
    learner.fit(examples(seed=0))
    return learner


def predicted_and_actual(learner, seed):
    shown = examples(seed)
    predicted = np.concatenate([learner.forecast(example.view).probability for example in shown])
    return predicted, np.concatenate([example.outcome for example in shown])


def test_it_learns_a_shape_that_no_level_shows(fitted):
    predicted, actual = predicted_and_actual(fitted, seed=1)
    assert average_precision_score(actual, predicted) > 10 * actual.mean()


def test_its_probabilities_add_up_to_the_failures_though_healthy_rows_were_left_out():
    learner = predictor(max_healthy=500)
    learner.fit(examples(seed=0))
    predicted, actual = predicted_and_actual(learner, seed=0)
    assert predicted.mean() == pytest.approx(actual.mean(), rel=0.5)


def test_the_reason_names_the_metric_with_an_unusual_course(fitted):
    temp, fails = fleet(seed=1)
    worker, tick = next((w, t) for w, t in np.argwhere(fails) if t > WINDOW)
    hazard = fitted.forecast(view(temp, tick - 1))
    assert hazard.probability[worker] > 0.1
    assert hazard.why[int(worker)].startswith("temp had an unusual course in the last 16 s: ")


def test_an_output_sees_the_whole_window_and_nothing_after():
    learner = predictor(window_s=20.0, metrics=("temp", "watts"))
    network = learner._build()
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 4, 30, generator=drawn, requires_grad=True)
    network(inputs)[0, 0, 24].backward()
    seen = inputs.grad.abs().sum(dim=(0, 1)) > 0
    assert seen[24 - 19 : 25].all()
    assert not seen[25:].any()


def test_a_worker_without_samples_gets_no_forecast_and_gaps_are_allowed(fitted):
    temp, _ = fleet(seed=2)
    temp[0] = np.nan
    temp[1, ::2] = np.nan
    probability = fitted.forecast(view(temp, 50)).probability
    assert np.isnan(probability).tolist() == [True] + [False] * (WORKERS - 1)


def test_it_runs_on_one_thread_and_gives_the_others_back():
    torch.set_num_threads(2)
    state = torch.random.get_rng_state()
    predictor().fit(examples(seed=0, ticks=40))
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_of_other_options_is_refused(fitted):
    with pytest.raises(ModelError, match="need metrics and steps of the options"):
        predictor(step_s=2.0).restore(fitted.parts())
    with pytest.raises(ModelError, match=r"need 1\.weight of shape 4 x 2 x 3, was"):
        predictor(channels=4).restore(fitted.parts())
