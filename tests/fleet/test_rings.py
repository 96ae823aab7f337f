"""A metric that no worker reports takes no memory, and reads as missing."""

import numpy as np

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
    np.testing.assert_equal(late.copy().window(3)[1], [np.nan, np.nan, 5.0])
    assert late.window(3).shape == (3, 3)
