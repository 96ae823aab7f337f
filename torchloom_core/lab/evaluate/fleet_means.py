"""Means over fleets: each trace is one fleet, with equal weight."""

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from torchloom_core.lab.learning.forecast_score import Interval

MIN_FLEETS = 3
"""Minimum for an interval over fleets: two figures do not show their spread."""

_HIGH = 0.975


def mean_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the mean of one figure per fleet, with a 95 % interval (Student's t over fleets).

    ``figures`` are those of the traces that have it, out of ``traces``. Their spread includes the
    uncertainty within each trace. The interval assumes figures that are about normally distributed,
    which few traces cannot show.
    """
    from scipy.special import stdtrit

    count = len(figures)
    of = f"{count} traces" if count == traces else f"{count} of {traces} traces"
    value = float(np.mean(figures)) if count else 0.0
    if count < MIN_FLEETS:
        return Interval(value=value, method=f"none: need {MIN_FLEETS} traces, was {of}")
    error = float(np.std(figures, ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, _HIGH)) * error
    return Interval(
        value=value,
        low=value - half,
        high=value + half,
        method=f"Student's t over {of}, equally weighted",
    )


def share_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same for figures between 0 and 1, without an interval if all are equal."""
    return _within(figures, traces, 1.0)


def rate_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same for figures of at least 0, without an interval if all are equal."""
    return _within(figures, traces, math.inf)


def difference_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same for differences, with the number of traces ahead and behind."""
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
        return Interval(
            value=of.value, method="none: need figures that differ, was one value in all"
        )
    return replace(of, low=max(0.0, of.low), high=min(most, of.high))
