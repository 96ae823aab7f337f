"""A state comes back from JSON as it was; what has no place there is refused by name."""

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.json_state import decode, encode

leaves = (
    st.none() | st.booleans() | st.text() | st.integers() | st.binary()
    | st.floats(allow_nan=False) | st.just(Counter("aab")) | st.sampled_from([torch.bfloat16])
)  # fmt: skip
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.just("!"), inner)
    ),
    max_leaves=20,
)


def again(state):
    tensors = {}
    text = msgspec.json.encode(encode(state, "s", tensors))
    return decode(msgspec.json.decode(text), tensors)


@given(states)
def test_a_state_comes_back_with_its_types(state):
    found = again(state)
    assert found == state
    assert repr(found) == repr(state)


def test_tensors_are_kept_aside_under_their_place():
    tensors = {}
    state = {"a": [torch.ones(2)], "b": {1: torch.zeros(1)}}
    text = msgspec.json.encode(encode(state, "model", tensors))
    assert sorted(tensors) == ["model.a.0", "model.b.1"]
    assert decode(msgspec.json.decode(text), tensors)["b"][1] is tensors["model.b.1"]


def test_random_states_come_back():
    python, numpy = random.getstate(), np.random.get_state()
    assert again(python) == python
    found = again(numpy)
    np.random.set_state(found)
    assert [type(one) for one in found] == [type(one) for one in numpy]
    assert np.isnan(again(float("nan")))
    assert again(np.float32(0.1)) == np.float32(0.1)


@pytest.mark.parametrize("what", [object(), print, np.array([object()]), 1j, {"a": [lambda: 1]}])
def test_what_is_no_data_is_refused_with_its_place(what):
    with pytest.raises(CheckpointError, match=r"^loader\.?.*: cannot be saved: "):
        encode(what, "loader", {})


@pytest.mark.parametrize(
    "state",
    [
        {"!": "tensor", "of": "gone"},
        {"!": "pickle", "of": ""},
        {"!": ["dict"]},
        {"!": "dtype", "of": "nn"},
    ],
)
def test_json_that_was_not_written_here_is_refused(state):
    with pytest.raises(CheckpointError):
        decode(state, {})
