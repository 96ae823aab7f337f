"""Format numbers and relations, alike in tables, page and findings."""

from collections.abc import Mapping, Sequence

from msgspec import UNSET

from torchloom_core.lab.evaluate.results import TraceResults
from torchloom_core.lab.learning.forecast_score import (
    AlarmUnit,
    ForecastScore,
    Interval,
    alarm_unit,
)

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
POINTS = 100.0
"""Goodput is a share; differences are shown in percentage points."""


def duration(seconds: float) -> str:
    """Return a time in a readable unit.

    Examples
    --------
    >>> duration(90), duration(5400), duration(604800)
    ('1.5 min', '1.5 h', '7 d')
    """
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if abs(seconds) >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def estimate(interval: Interval, digits: int = 3) -> str:
    """Return ``0.951 [0.943, 0.958]``."""
    return interval.text(f"{{:.{digits}f}}".format)


def signed(interval: Interval | None) -> str:
    """Return ``+0.032 [+0.011, +0.070]``, "" without a difference."""
    return "" if interval is None else interval.text("{:+.3f}".format)


def forecast_alarms(traces: Sequence[TraceResults]) -> AlarmUnit:
    """Return the unit for false alarms of all forecasts; per component if the traces differ."""
    kinds = {results.trace["watched"] for results in traces}
    rates = (
        score.false_alarms_per_node_day.value for results in traces for score in results.forecasts
    )
    return alarm_unit(kinds.pop() if len(kinds) == 1 else "component", rates)


def policy_alarms(results: TraceResults) -> AlarmUnit:
    """Return the unit for false alarms of the replayed policies."""
    rates = (policy.false_alarms_per_node_day for policy in results.policies)
    return alarm_unit(results.trace["watched"], rates)


def difference(interval: Interval) -> str:
    """Return ``+0.032 [+0.011, +0.070]``, or the value and why it has no interval."""
    text, why = signed(interval), interval.method.removeprefix("none: ")
    has_none = interval.low is None or interval.high is None
    return f"{text} (no interval: {why})" if has_none and why else text


def recall(score: ForecastScore) -> str:
    """Return the share of incidents found, and the share found by chance."""
    text = estimate(score.recall, 2)
    return text if score.by_chance is UNSET else f"{text}, {score.by_chance:.2f} by chance"


def gain(interval: Interval | None) -> str:
    """Return a difference in goodput as ``+1.23 [+0.80, +1.70]``, in points."""
    return "" if interval is None else interval.text(_points)


def _points(share: float) -> str:
    return f"{round(POINTS * share, 2) + 0.0:+.2f}"  # never -0.00


def is_clear(interval: Interval) -> bool:
    """Return whether the interval excludes zero."""
    if interval.low is None or interval.high is None:
        return False
    return interval.low > 0 or interval.high < 0


def relation(interval: Interval, other: str) -> str:
    """Return a paired difference in words: ``is better than daly (+0.20 [+0.09, +0.31] points)``.

    Better or worse requires an interval that excludes zero. The numbers of runs ahead and behind
    show whether a few runs dominate the mean.
    """
    if interval.low is None:
        word = "has too few seeds for a comparison with"
    elif interval.low == interval.high == 0:
        return f"is as good as {other} in every run"
    elif not is_clear(interval):
        word = "is not clearly different from"
    else:
        word = "is better than" if interval.value > 0 else "is worse than"
    runs = ""
    if interval.ahead is not None:
        runs = f"; ahead in {interval.ahead} runs, behind in {interval.behind}"
    return f"{word} {other} ({gain(interval)} points{runs})"


def counts(named: Mapping[str, float], most: int | None = None) -> str:
    """Return counts, the largest first: ``migrate 2.5, cordon 2.4``; at most ``most`` of them."""
    ranked = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} {count:.3g}" for name, count in ranked[:most])
    rest = len(ranked) - len(ranked[:most])
    return f"{shown} and {rest} more" if rest else shown
