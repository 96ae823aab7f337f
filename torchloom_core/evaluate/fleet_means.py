"""Means over fleets: each trace is one fleet, and counts the same."""

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from torchloom_core.learning.forecast_score import Interval

MIN_FLEETS = 3
"""With fewer traces nothing is said of fleets: two figures show no spread to speak of."""

_HIGH = 0.975


def mean_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the mean of one figure a fleet, with the 95 % interval of Student's t over fleets.

    Whatever makes a figure uncertain within its trace is part of how the figures differ. The
    interval is of the mean of fleets like these, if theirs are about normally distributed; few
    traces cannot show whether they are.

    Parameters
    ----------
    figures : sequence of float
        Of the traces that have one.
    traces : int
        How many there are.
    """
    from scipy.special import stdtrit

    count = len(figures)
    of = f"{count} traces" if count == traces else f"{count} of {traces} traces"
    value = float(np.mean(figures)) if count else 0.0
    if count < MIN_FLEETS:
        return Interval(value=value, method=f"none: need {MIN_FLEETS} traces to tell, was {of}")
    error = float(np.std(figures, ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, _HIGH)) * error
    return Interval(
        value=value,
        low=value - half,
        high=value + half,
        method=f"Student's t over {of}, each of which counts the same",
    )


def share_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same of figures between 0 and 1, with no interval where all are the same."""
    return _within(figures, traces, 1.0)


def rate_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same of figures that are not below 0, with none where all are the same."""
    return _within(figures, traces, math.inf)


def difference_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same of differences, with the number of traces ahead and behind."""
    return replace(
        mean_over_fleets(figures, traces),
        ahead=sum(figure > 0 for figure in figures),
        behind=sum(figure < 0 for figure in figures),
    )


def _within(figures: Sequence[float], traces: int, most: float) -> Interval:
    of = mean_over_fleets(figures, traces)
    if of.low is None or of.high is None:
        return of
    if min(figures) == max(figures):
        return Interval(value=of.value, method="none: need traces that differ, was the same of all")
    return replace(of, low=max(0.0, of.low), high=min(most, of.high))
