"""Small encodings give back what they promise, and refuse what is damaged."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from torchloom_core.checkpoints.small import Method, Role, decode, encode, needs_base, role_of
from torchloom_core.floor.errors import CheckpointError

TRAINED = {"model.layers.0.weight"}
ROLES = {
    "model.layers.0.weight": Role.WEIGHT,
    "model.norm.running_mean": Role.EXACT,
    "optim.state.layers.0.weight.exp_avg": Role.MOMENT,
    "optim2.state.2:layers.0.weight.momentum_buffer": Role.MOMENT,
    "optim.state.layers.0.weight.exp_avg_sq": Role.SECOND_MOMENT,
    "optim.state.layers.0.weight.max_exp_avg_sq": Role.SECOND_MOMENT,
    "optim.state.layers.0.weight.step": Role.EXACT,
    "optim.state.layers.0.weight.square_avg": Role.EXACT,
    "optim.groups.0.exp_avg": Role.EXACT,
    "rank0.loader.exp_avg": Role.EXACT,
    "rank0.random.torch": Role.EXACT,
}
METHODS = {
    Role.WEIGHT: Method.DIFFERENCE,
    Role.MOMENT: Method.LINEAR,
    Role.SECOND_MOMENT: Method.FOURTH_ROOT,
}
LEVELS = {Role.WEIGHT: 127, Role.MOMENT: 31, Role.SECOND_MOMENT: 127}
BLOCK = 1024
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
FINITE = st.floats(-1e6, 1e6, width=32)


def bfloat16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def of(values, dtype):
    return bfloat16(values) if dtype == "bfloat16" else np.asarray(values, dtype)


def floats(data, dtype):
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype).astype(np.float32)


def there_and_back(values, dtype, role, base=None):
    data = memoryview(values.tobytes())
    below = None if base is None else memoryview(base.tobytes())
    encoded = encode(data, dtype, role, below)
    assert encoded == encode(data, dtype, role, below)
    into = bytearray(len(data))
    decode(encoded.data, below if needs_base(encoded.data) else None, memoryview(into))
    return encoded, bytes(into)


def scales(values, levels):
    """Return half the bound of each value: its block's largest over the levels."""
    rows = np.concatenate([np.abs(values), np.zeros(-len(values) % BLOCK, np.float32)])
    largest = rows.reshape(-1, BLOCK).max(axis=1).astype(np.float64)
    return np.repeat(np.maximum(largest / levels * (1 + 2**-7), 2.0**-126), BLOCK)[: len(values)]


@pytest.mark.parametrize(("name", "role"), ROLES.items())
def test_a_name_says_how_its_tensor_may_be_rounded(name, role):
    assert role_of(name, TRAINED) is role


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("role", METHODS)
def test_a_rounded_number_is_at_most_half_a_scale_from_what_it_was(dtype, role):
    rng = np.random.default_rng(1)
    base = of(rng.normal(0, 0.02, 5000), dtype)
    values = of(floats(base, dtype) + rng.normal(0, 1e-3, 5000), dtype)
    if role is Role.SECOND_MOMENT:
        values = of(floats(values, dtype) ** 2, dtype)
    encoded, back = there_and_back(values, dtype, role, base)
    exact, found = floats(values, dtype), floats(back, dtype)
    step = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    rounding = np.abs(exact) * step + (2.0**-24 if dtype == "float16" else 0)
    assert encoded.method is METHODS[role]
    if role is Role.WEIGHT:
        bound = scales(exact - floats(base, dtype), LEVELS[role]) / 2
    elif role is Role.MOMENT:
        bound = scales(exact, LEVELS[role]) / 2
    else:
        root = exact.astype(np.float64) ** 0.25
        bound = (root + scales(root, LEVELS[role])) ** 4 - exact
        assert ((found > 0) == (exact > 0)).all()
    assert (np.abs(found - exact) <= bound * 1.001 + rounding).all()
    assert len(encoded.data) < 0.3 * 4 * 5000


@settings(max_examples=30, deadline=None)
@given(
    arrays(np.float32, st.integers(0, 40), elements=ANY),
    st.sampled_from(list(Role)),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.booleans(),
)
def test_no_number_comes_back_wrong_in_silence(values, role, dtype, has_base):
    with np.errstate(over="ignore"):
        values = of(values, dtype)
    base = of(np.zeros(len(values)), dtype) if has_base else None
    encoded, back = there_and_back(values, dtype, role, base)
    exact, found = floats(values.tobytes(), dtype), floats(back, dtype)
    if encoded.method in (Method.SAME, Method.EXACT):
        assert back == values.tobytes()
        return
    assert np.isfinite(exact).all()
    assert np.isfinite(found).all()
    assert (found[exact > 0] > 0).all() or encoded.method is not Method.FOURTH_ROOT
    if len(exact):
        largest = float(np.abs(exact).max())
        assert (np.abs(found - exact.astype(np.float64)) <= largest / 30 + 2.0**-24).all()


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("role", METHODS)
def test_a_tensor_with_a_number_that_is_not_finite_is_kept_to_the_bit(role, odd):
    values = np.linspace(0, 1, 3000, dtype=np.float32)
    base = np.zeros_like(values)
    values[2999] = odd
    encoded, back = there_and_back(values, "float32", role, base)
    assert (encoded.method, back) == (Method.EXACT, values.tobytes())


@pytest.mark.parametrize(
    ("values", "dtype", "role", "base"),
    [
        (np.arange(50, dtype=np.int64), "int64", Role.WEIGHT, np.zeros(50, np.int64)),
        (np.ones(50, np.float64) / 3, "float64", Role.MOMENT, None),
        (np.arange(50, dtype=np.float32), "float32", Role.WEIGHT, None),
        (np.arange(50, dtype=np.float32), "float32", Role.WEIGHT, np.zeros(49, np.float32)),
        (np.full(50, 3e38, np.float32), "float32", Role.WEIGHT, np.full(50, -3e38, np.float32)),
        (np.full(50, -1e-9, np.float32), "float32", Role.SECOND_MOMENT, None),
        (np.array(3, np.float32), "float32", Role.EXACT, np.array(2, np.float32)),
        (np.arange(5001, dtype=np.uint8), "uint8", Role.EXACT, None),
    ],
)
def test_what_cannot_be_rounded_is_kept_to_the_bit(values, dtype, role, base):
    encoded, back = there_and_back(values, dtype, role, base)
    assert (encoded.method, back) == (Method.EXACT, values.tobytes())


def test_what_has_not_changed_since_the_base_takes_four_bytes():
    values = np.arange(5000, dtype=np.int32)
    encoded, back = there_and_back(values, "int32", Role.EXACT, values)
    assert (encoded.method, len(encoded.data), back) == (Method.SAME, 4, values.tobytes())


def test_tensors_of_many_chunks_come_back(monkeypatch):
    monkeypatch.setattr("torchloom_core.checkpoints.deflated._AT_ONCE", 2048)
    values = np.random.default_rng(2).normal(size=9001).astype(np.float32)
    assert there_and_back(values, "float32", Role.EXACT)[1] == values.tobytes()
    chunked, back = there_and_back(values, "float32", Role.MOMENT)
    monkeypatch.undo()
    into = bytearray(len(back))
    decode(chunked.data, None, memoryview(into))
    assert into == back


def test_the_base_may_lie_where_the_tensor_is_to_be():
    base = np.linspace(0, 1, 3000, dtype=np.float32)
    values = base + np.float32(0.01) * base[::-1]
    encoded, back = there_and_back(values, "float32", Role.WEIGHT, base)
    place = memoryview(bytearray(base.tobytes()))
    decode(encoded.data, place, place)
    assert bytes(place) == back


@pytest.mark.parametrize("role", Role)
def test_a_damaged_encoding_is_an_error_of_one_line_or_other_numbers(role):
    rng = random.Random(4)
    values = np.linspace(0, 1, 3000, dtype=np.float32)
    base, into = memoryview(bytes(values.nbytes)), memoryview(bytearray(values.nbytes))
    good = encode(memoryview(values.tobytes()), "float32", role, base).data
    found = 0
    for _ in range(100):
        damaged = bytearray(good)
        what = rng.choice(["flipped", "cut", "longer"])
        if what == "flipped":
            damaged[rng.randrange(60)] ^= rng.randrange(1, 256)
        elif what == "cut":
            del damaged[rng.randrange(len(damaged)) :]
        else:
            damaged += bytes(rng.randrange(1, 9))
        why = ""
        try:
            decode(bytes(damaged), base, into)
        except CheckpointError as error:
            why = str(error)
        assert "\n" not in why
        assert why or what == "flipped"
        found += bool(why)
    assert found > 60


def test_a_small_stream_of_many_bytes_takes_no_more_memory_than_its_tensor():
    bomb = encode(memoryview(bytes(5_000_000)), "uint8", Role.EXACT, None).data
    with pytest.raises(CheckpointError, match="its end is not where it should be"):
        decode(bomb, None, memoryview(bytearray(100)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"\x02\x00\x00\x0a", "need version <= 1, was 2"),
        (b"\x01\x09\x00\x0a", "header"),
        (b"\x01\x00\x00\x0a", "lacks its base"),
    ],
)
def test_what_is_no_encoding_is_refused_by_one_line(data, why):
    with pytest.raises(CheckpointError, match=why):
        decode(data, None, memoryview(bytearray(8)))
