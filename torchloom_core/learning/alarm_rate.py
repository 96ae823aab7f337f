"""False alarms by what is watched, in a unit in which the number reads well.

Scores hold them a component and day; of a fleet of disks people say how many in 1,000 disk-days.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from torchloom_core.learning.forecast_score import Interval

_LEAST = 0.1


class AlarmUnit(NamedTuple):
    """In how many component-days alarms are counted, and how that is said."""

    days: int
    text: str

    def scaled(self, per_day: Interval) -> Interval:
        """Return a rate a component-day in this unit."""
        low, high = (
            None if bound is None else self.days * bound for bound in (per_day.low, per_day.high)
        )
        return Interval(value=self.days * per_day.value, low=low, high=high, method=per_day.method)

    def said(self, per_day: float) -> str:
        """Return a rate a component-day in words."""
        return f"{self.days * per_day:.4g} false alarms {self.text}"


def alarm_unit(kind: str, per_day: Iterable[float]) -> AlarmUnit:
    """Return the smallest unit in which the highest of some rates is at least a tenth.

    Parameters
    ----------
    kind : str
        What is watched.
    per_day : iterable of float
        False alarms a component-day.

    Examples
    --------
    >>> alarm_unit("node", [0.25, 0.004]).text, alarm_unit("disk", [0.0004]).said(0.0004)
    ('a node-day', '0.4 false alarms per 1,000 disk-days')
    >>> alarm_unit("disk", [3e-6]).said(3e-6)
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
