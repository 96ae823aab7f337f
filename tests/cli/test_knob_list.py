"""What a person reads of a knob's values."""

import pytest

from torchloom_core.cli.knob_commands import _present


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"g0-0": 3.0, "g1-0": 3}, "3.0"),
        ({"g0-0": 3.0, "g1-0": 4}, "g0-0: 3.0, g1-0: 4"),
        ({"g0-0": "a", "g1-0": "a"}, "a"),
        ({}, "-"),
    ],
)
def test_a_value_that_all_have_is_told_once_however_it_was_written(values, said):
    assert _present(values) == said
