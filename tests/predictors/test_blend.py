"""A blend is the mean of its members, and is stored and refused as they are."""

from typing import ClassVar

import msgspec
import numpy as np
import pytest

from tests.predictors.warming_fleet import learned, one_hot
from torchloom_core.plugin import ModelError
from torchloom_core.testing import LearnerContract
from torchloom_predictors.blend import BlendPredictor
from torchloom_predictors.boosting import BoostingPredictor
from torchloom_predictors.logistic import LogisticPredictor


@pytest.mark.slow
class TestContract(LearnerContract):
    predictor_class = BlendPredictor
    options: ClassVar = {"metrics": ["temp"], "spans_s": [5.0], "members": ["logistic", "boosting"]}


def log_odds(predictor):
    probability = predictor.forecast(one_hot()).probability
    return np.log(probability) - np.log1p(-probability)


@pytest.mark.slow
def test_the_blend_is_the_mean_of_its_members():
    blend = learned(BlendPredictor, members=("logistic", "boosting"))
    members = [log_odds(learned(cls)) for cls in (LogisticPredictor, BoostingPredictor)]
    np.testing.assert_allclose(log_odds(blend), np.mean(members, axis=0), rtol=1e-6)


@pytest.mark.parametrize(("members", "was"), [([], "none"), (["forest", "forest"], "forest, for")])
def test_no_member_or_one_twice_is_refused(members, was):
    with pytest.raises(msgspec.ValidationError, match=f"each once, was {was}"):
        msgspec.convert({"members": members}, BlendPredictor.Options)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (b"\xff", "need the members as msgpack"),
        (msgspec.msgpack.encode({"forest": b""}), "need logistic, was forest"),
        (msgspec.msgpack.encode({"logistic": b"x"}), "logistic.safetensors"),
    ],
)
def test_unknown_members_are_refused_in_one_line(part, problem):
    blend = learned(BlendPredictor, members=("logistic",))
    parts = {**blend.parts(), "blend.msgpack": part}
    with pytest.raises(ModelError, match=problem) as error:
        blend.restore(parts)
    assert "\n" not in str(error.value)
