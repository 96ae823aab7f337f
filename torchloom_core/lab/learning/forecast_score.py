"""The score of a forecast, as in cards and reports."""

from typing import Literal

import msgspec

from torchloom_core.lab.learning.task_wording import WORDING, TaskWording

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
    """The score of one predictor on time that it was not fitted on.

    Attributes
    ----------
    task : "forecast" or "detect"
        Whether a failure starts within the horizon, or an incident is in progress.
    from_ns, until_ns : int
        First and last scored moment; horizons end within the trace.
    samples, positives : int
        Labelled moments of workers, and the positive ones.
    prevalence : float
        ``positives / samples``, which is also the AUPRC of a random score.
    incidents : int
        Failures that could be predicted, or incidents that could be detected.
    auprc : Interval
        Over samples, clustered by time and by component.
    precision, recall, f1 : Interval
        By event: an alarm is right if a failure follows within the horizon, no sooner than
        ``lead_s``; an incident with a right alarm is found.
    false_alarms_per_node_day : Interval
        Alarms that no failure followed; alarms of one worker within the horizon count once.
    leads_s : tuple of float
        From the first right alarm to the failure, for each found incident, sorted; not above 0
        for a detection.
    allowed_per_node_day : float, optional
        The budget of false alarms for the threshold; absent if the threshold was given.
    by_chance : float, optional
        Mean recall of the same alarms at other times, for a forecast also on other components.
        Absent in older scores of forecasts.
    threshold_from : str
        The data that the threshold was set on, never the scored time.
    verdict : str
        The level; "" without a random score, and in older scores.
    skill : str
        The verdict as a sentence.
    flags : tuple of str
        Leaks and suspicions, by name.
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
    def wording(self) -> TaskWording:
        """The words for what the task predicts."""
        return WORDING[self.task]
