import numpy as np
import pytest

from torchloom_core.floor.errors import ModelError, PluginError
from torchloom_core.lab.learning import RowSample, arrays_bytes, arrays_part

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
