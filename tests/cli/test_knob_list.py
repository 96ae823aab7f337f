"""The text of a knob's values."""

import pytest

from torchloom_core.cli.knob_commands import _present, _range
from torchloom_core.wire.messages import KnobSpec


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"g0-0": 3.0, "g1-0": 3}, "3.0"),
        ({"g0-0": 3.0, "g1-0": 4}, "g0-0: 3.0, g1-0: 4"),
        ({"g0-0": "a", "g1-0": "a"}, "a"),
        ({}, "-"),
    ],
)
def test_a_value_that_all_workers_have_is_shown_once(values, text):
    assert _present(values) == text


def test_a_line_feed_in_a_value_starts_no_line():
    forged = "a\ng1-0 0.5"
    assert _present({"g0-0": forged}) == "a\\ng1-0 0.5"
    assert "\n" not in _range(KnobSpec(name="x", kind="choice", choices=(forged,)))
    assert "\n" not in _range(KnobSpec(name="x", kind="int", unit=forged))
