"""A value is accepted in the knob's type and range, or refused in one line."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.floor.errors import KnobError
from torchloom_core.floor.suggest import nearest
from torchloom_core.wire.knobs import check_value, find_spec, shown
from torchloom_core.wire.messages import KnobSpec

LR = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
EVERY = KnobSpec(name="every", kind="int", low=1, high=10)
WIRE = KnobSpec(name="wire", kind="choice", choices=("bf16", "fp32"))
FAST = KnobSpec(name="fast", kind="bool")
FREE = KnobSpec(name="free", kind="int")
RING = KnobSpec(name="ring", kind="order")
WIDE = KnobSpec(name="wide", kind="float")


@pytest.mark.parametrize(
    ("spec", "value", "taken"),
    [
        (LR, 0.0, 0.0),
        (LR, 1, 1.0),
        (EVERY, 10, 10),
        (WIRE, "bf16", "bf16"),
        (FAST, False, False),
        (FREE, -(2**63), -(2**63)),
        (WIDE, 2**60, float(2**60)),
        (RING, "", ""),
        (RING, "g2,g0,node_1-a", "g2,g0,node_1-a"),
        (RING, ",".join(f"g{n:03}" for n in range(819)), ",".join(f"g{n:03}" for n in range(819))),
    ],
)
def test_a_good_value_is_taken_in_the_knobs_type(spec, value, taken):
    assert check_value(spec, value) == taken
    assert type(check_value(spec, value)) is type(taken)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (LR, 1.5, "knob lr: need at most 1, was 1.5"),
        (LR, -0.1, "knob lr: need at least 0, was -0.1"),
        (LR, "fast", "knob lr: need a number, was 'fast'"),
        (LR, True, "knob lr: need a number, was True"),
        (LR, math.nan, "knob lr: need a finite number, was nan"),
        (WIDE, math.inf, "knob wide: need a finite number, was inf"),
        (WIDE, 10**400, "knob wide: need a finite number, was inf"),
        (EVERY, 0, "knob every: need at least 1, was 0"),
        (EVERY, 11, "knob every: need at most 10, was 11"),
        (EVERY, 2.0, "knob every: need a whole number, was 2.0"),
        (EVERY, True, "knob every: need a whole number, was True"),
        (FREE, 2**63, "knob free: need a number of at most 63 bits, was 64"),
        (WIRE, "fp8", "knob wire: need one of bf16, fp32, was 'fp8'"),
        (WIRE, 1, "knob wire: need one of bf16, fp32, was 1"),
        (RING, 3, "knob ring: need group names separated by commas, was 3"),
        (RING, "a, b", "knob ring: need group names separated by commas, was ' b'"),
        (RING, "a,,b", "knob ring: need group names separated by commas, was ''"),
        (RING, "a,b,a", "knob ring: need each group once, was a twice"),
        (RING, "g" * 4097, "knob ring: need at most 4096 characters, were 4097"),
        (FAST, 1, "knob fast: need true or false, was 1"),
        (FAST, "true", "knob fast: need true or false, was 'true'"),
    ],
)
def test_a_bad_value_is_refused_with_the_rule_and_the_value(spec, value, message):
    with pytest.raises(KnobError) as error:
        check_value(spec, value)
    assert str(error.value) == message


values = st.one_of(st.booleans(), st.integers(), st.floats(), st.text())


@given(spec=st.sampled_from([LR, EVERY, WIRE, FAST, FREE, WIDE]), value=values)
def test_any_value_is_taken_or_is_a_knob_error(spec, value):
    try:
        taken = check_value(spec, value)
    except KnobError:
        return
    assert check_value(spec, taken) == taken


def test_a_knob_is_found_by_name_or_the_nearest_are_offered():
    assert find_spec("lr", [LR, EVERY]) is LR
    with pytest.raises(KnobError, match=r"no knob is called 'evry'; did you mean every\?"):
        find_spec("evry", [LR, EVERY])


def test_only_some_of_many_names_are_listed():
    text = nearest("?", [f"w{n:04}" for n in range(10_000)])
    assert text.startswith("; there are w0000, w0001, ")
    assert text.endswith(", w0019 and 9980 more")


def test_a_long_value_is_shown_to_people_without_its_middle():
    text = shown("g" * 4096)
    assert len(text) == 203
    assert text.startswith("'ggg")
    assert "g...g" in text
    with pytest.raises(KnobError) as refused:
        check_value(WIRE, "g" * 4096)
    assert len(str(refused.value)) < 300
