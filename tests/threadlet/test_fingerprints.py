"""Standby tasks with the same weights have equal fingerprints, and others do not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchloom_threadlet.standby_tasks import saved_state
from torchloom_threadlet.standby_tasks.saved_state import fingerprint

KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64]


def weights(kind=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 3, generator=generator).to(kind) for n in (4, 1, 5)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equal_weights_have_equal_fingerprints(kind):
    assert fingerprint(weights(kind)) == fingerprint(weights(kind))
    assert fingerprint([weights(kind)[0].T]) == fingerprint([weights(kind)[0].T.contiguous()])


@given(place=st.integers(0, 2), row=st.integers(0, 3), column=st.integers(0, 2))
def test_one_bit_changes_the_fingerprint(place, row, column):
    other = weights()
    weight = other[place]
    row %= len(weight)
    weight[row, column] = torch.nextafter(weight[row, column], torch.tensor(9.0))
    assert fingerprint(other) != fingerprint(weights())


def test_order_and_shape_change_the_fingerprint():
    first, *others = weights()
    fingerprints = {
        fingerprint(w) for w in ([first, *others], [*others, first], [first.T], [first], [])
    }
    assert len(fingerprints) == 5


def test_parts_are_weighted_by_their_position_in_the_whole(monkeypatch):
    weight = torch.arange(10.0)
    whole = fingerprint([weight])
    monkeypatch.setattr(saved_state, "_AT_ONCE", 4)
    assert fingerprint([weight]) == whole
    assert fingerprint([weight.roll(4)]) != whole


def test_a_weight_without_elements_has_a_fingerprint():
    assert fingerprint([torch.empty(0)]) != fingerprint([torch.empty(0, 3)])
