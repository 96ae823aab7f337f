"""The score of a forecast, as in cards and reports, with its words and units."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec


@dataclass(frozen=True)
class TaskWording:
    """The words of one task: what happens, and where positive moments and found ones lie."""

    one: str
    many: str
    before: str
    positive: str
    found: str

    def count(self, number: int) -> str:
        """Return the count with its noun, as ``1 failure`` or ``2 failures``."""
        return f"{number} {self.one if number == 1 else self.many}"


WORDING: dict[Literal["forecast", "detect"], TaskWording] = {
    "forecast": TaskWording(
        "failure", "failures", "before", "followed by a failure", "predictable"
    ),
    "detect": TaskWording("incident", "incidents", "in them", "in an incident", "detectable"),
}


FEW = 20
"""With fewer incidents only counts have intervals, which are exact."""

FUTURE_FEATURE = "future_feature"
SUSPICIOUS_FEATURE = "suspicious_feature"
SUSPICIOUS_SCORE = "suspicious_score"
TEST_TUNED_THRESHOLD = "test_tuned_threshold"
POINT_ADJUSTED = "point_adjusted"
LEAKY_COLUMN = "leaky_column"

TOO_GOOD = 0.95
"""An AUPRC from it on suggests a leak; docs/fitting.md gives the reason."""
MAX_PREVALENCE = 0.5
"""Above it, even a random score is near the limit."""

Level = Literal["refused", "no skill", "weak", "useful"]
"""The level of skill, see :mod:`torchloom_core.lab.learning.skill`."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate and its 95 % interval; ``low`` and ``high`` are None without one.

    ``ahead`` and ``behind`` count the runs with a paired difference above and below zero.
    """

    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""
    ahead: int | None = None
    behind: int | None = None

    def text(self, form: Callable[[float], str]) -> str:
        """Return ``value [low, high]``, or the value alone where there is no interval."""
        if self.low is None or self.high is None:
            return form(self.value)
        return f"{form(self.value)} [{form(self.low)}, {form(self.high)}]"


class CalibrationBin(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of similar probability: mean forecast and observed rate."""

    forecast: float
    observed: float
    samples: int


class PrPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Precision and recall of samples at one threshold."""

    threshold: float
    precision: float
    recall: float


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one predictor on time that it was not fitted on."""

    predictor: str
    task: Literal["forecast", "detect"]
    """Whether a failure starts within the horizon, or an incident is in progress."""
    horizon_s: float
    lead_s: float
    from_ns: int
    until_ns: int
    """First and last scored moment; horizons end within the trace."""
    components: int
    component_days: float
    samples: int
    positives: int
    """Labelled moments of workers, and the positive ones. Their share, ``prevalence``, is also the
    AUPRC of a random score."""
    prevalence: float
    incidents: int
    """Failures that could be predicted, or incidents that could be detected."""
    auprc: Interval
    """Over samples, clustered by time and by component."""
    threshold: float
    threshold_from: str
    """The data that the threshold was set on, never the scored time."""
    precision: Interval
    recall: Interval
    f1: float
    """By event: an alarm is right if a failure follows within the horizon, no sooner than
    ``lead_s``; an incident with a right alarm is found."""
    false_alarms_per_node_day: Interval
    """Alarms that no failure followed; alarms of one worker within the horizon count once."""
    leads_s: tuple[float, ...] = ()
    """From the first right alarm to the failure, for each found incident, sorted; not above 0 for a
    detection."""
    allowed_per_node_day: float | msgspec.UnsetType = msgspec.UNSET
    """The budget of false alarms for the threshold; absent if the threshold was given."""
    by_chance: float | msgspec.UnsetType = msgspec.UNSET
    """Mean recall of the same alarms at other times, for a forecast also on other components.
    Absent in older scores of forecasts."""
    brier: float = 0.0
    calibration: tuple[CalibrationBin, ...] = ()
    curve: tuple[PrPoint, ...] = ()
    versus: dict[str, Interval] = {}
    """Paired difference in AUPRC to another predictor, by its name."""
    verdict: Level | Literal[""] = ""
    skill: str = ""
    """The level, and the verdict as a sentence; "" without a random score, and in older scores."""
    flags: tuple[str, ...] = ()

    @property
    def wording(self) -> TaskWording:
        """The words for what the task predicts."""
        return WORDING[self.task]


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

    ``kind`` is that of the components, ``per_day`` are false alarms per component-day.

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
