"""A ring has the last columns, however they came; one without values takes no memory."""

import numpy as np
import pytest

from torchloom_core.live.fleet.rings import Ring


def test_an_unreported_metric_is_missing_and_its_first_value_comes_in_its_place():
    empty, late = Ring(3), Ring(3)
    for ring in (empty, late):
        ring.grow(2)
        ring.extend(np.full((2, 2), np.nan))
    late.extend(np.array([[np.nan, 5.0]]))
    late.grow(3)
    assert np.isnan(empty.window(3)).all()
    assert empty.window(3).shape == (2, 3)
    np.testing.assert_equal(late.copy(3).window(3)[1], [np.nan, np.nan, 5.0])
    assert late.window(3).shape == (3, 3)


@pytest.mark.parametrize("at_once", [1, 2, 5, 9])
def test_every_window_has_the_last_values_after_any_number_of_columns(at_once):
    values = np.arange(60.0).reshape(30, 2)
    ring = Ring(7)
    ring.grow(2)
    for at in range(0, len(values), at_once):
        ring.extend(values[at : at + at_once])
        known = np.vstack([np.full((7, 2), np.nan), values[: at + at_once]])
        for samples in (1, 4, 7):
            np.testing.assert_equal(ring.window(samples), known[-samples:].T)
        np.testing.assert_equal(ring.copy(4).window(4), ring.window(4))
