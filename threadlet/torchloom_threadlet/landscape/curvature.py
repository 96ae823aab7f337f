"""The curvature of the loss along an optimizer's update, in a few evaluations.

The critical step is the smallest multiple of an update at which the loss is no lower than before.
For a quadratic loss with gradient ``g`` and Hessian ``H`` it is ``2 (g . u) / (u . H u)`` along the
descent direction ``u``, so that 2 over it is the curvature along ``u`` relative to the slope: the
sharpness for an optimizer of this direction.
"""

import math

from torchloom_threadlet.landscape.surface import Direction, Surface

_MOST = 24
"""The most evaluations of a search."""

_CLOSE = 1e-7
"""The relative accuracy of a critical step."""


def critical_step(surface: Surface, step: Direction) -> float:
    """Return how far an update can be extended before the loss is back at its start.

    In multiples of the update: infinite where the loss fell as far as the search went, NaN where
    the update does not lead down at all; below 1 the update itself is too long. The search takes
    growing steps, and then interpolates between the last two by the parabola through three points,
    which is exact for a quadratic loss.

    References
    ----------
    .. [1] arXiv 2601.16979, critical sharpness.
    """
    evaluations = 1
    base = surface.at()

    def rise(share: float) -> float:
        """Return the loss minus its start; a loss that is no number counts as a large rise."""
        nonlocal evaluations
        evaluations += 1
        value = surface.at((step, share)) - base
        return value if math.isfinite(value) else math.inf

    low, high = 0.0, 1.0
    low_rise, high_rise = 0.0, rise(1.0)
    while high_rise < 0 and evaluations < _MOST:
        low, low_rise, high = high, high_rise, 2 * high
        high_rise = rise(high)
    if high_rise < 0:
        return math.inf
    while low_rise >= 0:  # the first step went too far, or leads up
        if evaluations >= _MOST:
            return math.nan
        middle = high / 4
        middle_rise = rise(middle)
        if middle_rise < 0:
            low, low_rise = middle, middle_rise
        else:
            high, high_rise = middle, middle_rise
    while evaluations < _MOST and high - low > _CLOSE * high:
        guess = _crossing(low, low_rise, high, high_rise)
        guess_rise = rise(guess)
        if abs(guess_rise) <= _CLOSE * abs(low_rise):
            return guess
        if guess_rise < 0:
            low, low_rise = guess, guess_rise
        else:
            high, high_rise = guess, guess_rise
    return (low + high) / 2


def curvature(surface: Surface, direction: Direction, span: float) -> float:
    """Return the second derivative of the loss along a direction, by central differences."""
    ahead, here, behind = (surface.at((direction, share)) for share in (span, 0.0, -span))
    return (ahead - 2.0 * here + behind) / span**2


def _crossing(low: float, low_rise: float, high: float, high_rise: float) -> float:
    """Return where the parabola through the start and both points is back at its start.

    If that is not between the points, return their middle.
    """
    middle = (low + high) / 2
    if not math.isfinite(high_rise):
        return middle
    # rise(s) = a s^2 + b s, by two points.
    determinant = low * high * (high - low)
    if determinant == 0.0:
        return middle
    bend = (low * high_rise - high * low_rise) / determinant
    slope = (high**2 * low_rise - low**2 * high_rise) / determinant
    guess = -slope / bend if bend > 0 else middle
    return guess if low < guess < high else middle
