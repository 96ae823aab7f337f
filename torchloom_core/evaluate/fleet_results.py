"""What several traces say together, as it stands in ``report.json``: each fleet counts once."""

import msgspec

from torchloom_core.evaluate.arm_results import ArmKind
from torchloom_core.learning.forecast_score import Interval


class PooledScore(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor over the moments and incidents of all traces, as if they were one fleet.

    A large trace weighs more. ``precision`` is None without an alarm, ``recall`` without an
    incident. Thresholds are each trace's own.
    """

    samples: int
    positives: int
    incidents: int
    auprc: float
    precision: float | None
    recall: float | None
    false_alarms_per_node_day: float


class FleetScore(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor over all traces: means over fleets, in which each trace counts the same.

    Attributes
    ----------
    prevalence : float
        The mean over those traces that have an AUPRC.
    auprc, precision, recall, false_alarms_per_node_day : Interval
        Over the traces that have such a figure: without a failure there is no AUPRC and no
        recall, without an alarm no precision.
    versus : dict of str to Interval
        Difference in AUPRC to another predictor, trace by trace; ``ahead`` and ``behind`` are
        traces.
    """

    predictor: str
    prevalence: float
    auprc: Interval
    precision: Interval
    recall: Interval
    false_alarms_per_node_day: Interval
    versus: dict[str, Interval]
    pooled: PooledScore


class FleetArm(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over all traces: means over fleets, in which each trace counts the same.

    Attributes
    ----------
    over_reference : tuple of float
        Of each trace, the mean gain in goodput over the reference of all traces.
    versus_reference : Interval, optional
        The mean of these; None for the reference itself. ``ahead`` and ``behind`` are traces.
    versus_without : Interval, optional
        Of an arm with policies: the same over the same job without them.
    """

    name: str
    kind: ArmKind
    goodput: Interval
    over_reference: tuple[float, ...]
    versus_reference: Interval | None = None
    versus_without: Interval | None = None


class FleetGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop over all traces, of the arms that were played on each.

    Attributes
    ----------
    reference : str
        The baseline with the best mean goodput that needs no forecast and recovers as the jobs
        do: one for all traces.
    """

    reference: str
    arms: tuple[FleetArm, ...]


class OverFleets(msgspec.Struct, frozen=True, kw_only=True):
    """What all traces of a study say together.

    Attributes
    ----------
    traces : int
        How many there are.
    """

    traces: int
    forecasts: tuple[FleetScore, ...] = ()
    goodput: FleetGoodput | msgspec.UnsetType = msgspec.UNSET
