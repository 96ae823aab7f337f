"""Scale, average and fill columns, for predictors that learn."""

from dataclasses import dataclass

import numpy as np

from torchloom_core.interface.arrays import Floats

_LEAST_SPREAD = 1e-6
"""A spread below this share of the median counts as rounding error."""


@dataclass(frozen=True)
class Scale:
    """Median and spread of each column, ``(columns,)``, NaN for a column without values.

    The spread is the interquartile range over 1.349, the standard deviation of a Gaussian; or the
    standard deviation, for a column that is constant most of the time.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Scale
    >>> scale = Scale.of(np.array([[1.0], [2.0], [3.0], [np.nan]]))
    >>> scale.spreads_off(np.array([[2.0 + 3 / 1.349], [np.nan]]))
    array([[ 3.],
           [nan]])
    """

    middle: Floats
    spread: Floats

    @classmethod
    def of(cls, rows: Floats) -> "Scale":
        """Compute the scale of ``(rows, columns)``."""
        middle, spread = np.full((2, rows.shape[1]), np.nan)
        known = np.isfinite(rows).any(axis=0)
        if known.any():
            with np.errstate(over="ignore", invalid="ignore"):
                low, middle[known], high = np.nanquantile(rows[:, known], [0.25, 0.5, 0.75], axis=0)
                overall = np.nanstd(rows[:, known], axis=0)
            quartiles = (high - low) / 1.349
            spread[known] = np.where(
                quartiles > _LEAST_SPREAD * np.abs(middle[known]), quartiles, overall
            )
        least = _LEAST_SPREAD * np.abs(middle) + np.finfo(float).tiny
        return cls(middle, np.maximum(spread, least))

    def spreads_off(self, values: Floats) -> Floats:
        """Return the distance of ``(..., columns)`` from the median in spreads, NaN if unknown."""
        with np.errstate(over="ignore", invalid="ignore"):
            off: Floats = (values - self.middle) / self.spread
        return off


def step_means(window: Floats, steps: int) -> Floats:
    """Return the mean over each of ``steps`` equal parts of a window, ``(workers, steps)``.

    Parameters
    ----------
    window : (workers, samples) float64
        Oldest first; values that are not finite are left out.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import step_means
    >>> step_means(np.array([[1.0, 3.0, np.nan, np.nan, 5.0, np.nan]]), 3)
    array([[ 2., nan,  5.]])
    """
    step_of = np.arange(window.shape[1]) * steps // window.shape[1]
    belongs = (step_of[:, None] == np.arange(steps)).astype(float)
    seen = np.isfinite(window)
    with np.errstate(over="ignore", invalid="ignore"):
        means = (np.where(seen, window, 0.0) @ belongs) / (seen @ belongs)
    return np.where(np.isfinite(means), means, np.nan)


def fill_unknown_columns(features: Floats) -> Floats:
    """Return the features with 0 in columns that are all NaN: trees find no split there.

    Parameters
    ----------
    features : (rows, features) float64
        NaN where unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import fill_unknown_columns
    >>> fill_unknown_columns(np.array([[np.nan, 1.0], [np.nan, np.nan]]))
    array([[ 0.,  1.],
           [ 0., nan]])
    """
    unknown = np.isnan(features).all(axis=0)
    return np.where(unknown, 0.0, features) if unknown.any() else features
