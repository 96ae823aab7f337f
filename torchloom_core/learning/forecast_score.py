"""How good a forecast was, as scores, cards and reports hold it."""

from typing import Literal

import msgspec

from torchloom_core.learning.task_wording import TOLD, Told

FEW = 20
"""With fewer incidents than this only exact intervals of counts are given."""

SUSPICIOUS_FEATURE = "suspicious_feature"
SUSPICIOUS_SCORE = "suspicious_score"
TEST_TUNED_THRESHOLD = "test_tuned_threshold"
POINT_ADJUSTED = "point_adjusted"
LEAKY_COLUMN = "leaky_column"

Level = Literal["refused", "no skill", "weak", "useful"]
"""What a predictor is worth, see :mod:`torchloom_core.learning.skill`."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate and its 95 % interval; ``low`` and ``high`` are None where none can be had.

    ``ahead`` and ``behind`` are the runs in which a paired difference was above and below zero.
    """

    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""
    ahead: int | None = None
    behind: int | None = None


class CalibrationBin(msgspec.Struct, frozen=True, kw_only=True):
    """Samples whose probability was alike: what was said, and what came true."""

    forecast: float
    observed: float
    samples: int


class PrPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Precision and recall of samples at one threshold."""

    threshold: float
    precision: float
    recall: float


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """How good one predictor was on the time it was not fitted on.

    Attributes
    ----------
    task : "forecast" or "detect"
        Whether a failure starts within the horizon, or whether an incident is going on.
    from_ns, until_ns : int
        First and last moment that is judged: a forecast's horizon is within the trace.
    samples, positives : int
        Judged moments of workers, and those that were followed by a failure, or in an incident.
    prevalence : float
        ``positives / samples``, which is also the AUPRC of a random score.
    incidents : int
        Failures that could have been forecast, or what could have been detected.
    auprc : Interval
        Over samples, which are clustered by stretches of time and by components.
    precision, recall, f1 : Interval
        By event: an alarm is right if a failure follows within the horizon, no sooner than
        ``lead_s``; an incident is found if there was such an alarm.
    false_alarms_per_node_day : Interval
        Alarms that nothing followed; those of one worker within the horizon count once.
    leads_s : tuple of float
        From the first right alarm to the failure, each incident that was found, sorted; a
        detection comes after it, and its are not above 0.
    allowed_per_node_day : float, optional
        The false alarms that the threshold was set to keep to; absent where it was given.
    by_chance : float, optional
        The recall that the same alarms have at other times, on the mean; of a forecast also on
        other components. Absent in older scores of forecasts.
    threshold_from : str
        What the threshold was set on, never the time that is scored.
    verdict : str
        The level, "" where no random score was made beside it and in older scores.
    skill : str
        The verdict as one plain sentence.
    flags : tuple of str
        Leaks and doubts, by name.
    """

    predictor: str
    task: Literal["forecast", "detect"]
    horizon_s: float
    lead_s: float
    from_ns: int
    until_ns: int
    components: int
    component_days: float
    samples: int
    positives: int
    prevalence: float
    incidents: int
    auprc: Interval
    threshold: float
    threshold_from: str
    precision: Interval
    recall: Interval
    f1: float
    false_alarms_per_node_day: Interval
    leads_s: tuple[float, ...] = ()
    allowed_per_node_day: float | msgspec.UnsetType = msgspec.UNSET
    by_chance: float | msgspec.UnsetType = msgspec.UNSET
    brier: float = 0.0
    calibration: tuple[CalibrationBin, ...] = ()
    curve: tuple[PrPoint, ...] = ()
    versus: dict[str, Interval] = {}
    """Paired difference in AUPRC to another predictor, by its name."""
    verdict: Level | Literal[""] = ""
    skill: str = ""
    flags: tuple[str, ...] = ()

    @property
    def told(self) -> Told:
        """What it was to tell, in words."""
        return TOLD[self.task]
