"""Rates of false alarms in a readable unit.

Scores have them per component and day; for a fleet of disks per 1,000 disk-days reads better.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from torchloom_core.lab.learning.forecast_score import Interval

_LEAST = 0.1


class AlarmUnit(NamedTuple):
    """A number of component-days, and its text."""

    days: int
    text: str

    def scaled(self, per_day: Interval) -> Interval:
        """Return a rate per component-day in this unit."""
        low, high = (
            None if bound is None else self.days * bound for bound in (per_day.low, per_day.high)
        )
        return Interval(value=self.days * per_day.value, low=low, high=high, method=per_day.method)

    def rate_text(self, per_day: float) -> str:
        """Return a rate per component-day as text in this unit."""
        return f"{self.days * per_day:.4g} false alarms {self.text}"


def alarm_unit(kind: str, per_day: Iterable[float]) -> AlarmUnit:
    """Return the smallest unit in which the highest of some rates is at least a tenth.

    Parameters
    ----------
    kind : str
        Kind of the components.
    per_day : iterable of float
        False alarms per component-day.

    Examples
    --------
    >>> alarm_unit("node", [0.25, 0.004]).text, alarm_unit("disk", [0.0004]).rate_text(0.0004)
    ('a node-day', '0.4 false alarms per 1,000 disk-days')
    >>> alarm_unit("disk", [3e-6]).rate_text(3e-6)
    '3 false alarms per million disk-days'
    """
    units = (
        AlarmUnit(1, f"a {kind}-day"),
        AlarmUnit(1_000, f"per 1,000 {kind}-days"),
        AlarmUnit(1_000_000, f"per million {kind}-days"),
    )
    highest = max((rate for rate in per_day if math.isfinite(rate)), default=0.0)
    if highest <= 0:
        return units[1]
    return next((unit for unit in units if unit.days * highest >= _LEAST), units[-1])
