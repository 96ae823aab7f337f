from torchloom_example import Example

from torchloom_core.testing import PredictorContract, view_of


class TestContract(PredictorContract):
    predictor_class = Example


def test_a_hot_worker_is_more_likely_to_fail():
    hazard = Example(Example.Options()).forecast(view_of({"gpu_temp_celsius": [60.0, 90.0]}))
    assert hazard.probability.tolist() == [0.001, 0.2]
