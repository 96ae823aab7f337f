"""Results over several traces, as ``report.json`` has them; each trace is one fleet."""

import msgspec

from torchloom_core.lab.evaluate.arm_results import ArmKind
from torchloom_core.lab.learning.forecast_score import Interval


class PooledScore(msgspec.Struct, frozen=True, kw_only=True):
    """One predictor over the samples and incidents of all traces, as if they were one fleet.

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
    """One predictor over all traces: means with equal weight for each trace.

    Attributes
    ----------
    prevalence : float
        Mean over the traces that have an AUPRC.
    auprc, precision, recall, false_alarms_per_node_day : Interval
        Over the traces that have the figure: a trace without a failure has no AUPRC and no
        recall, one without an alarm no precision.
    versus : dict of str to Interval
        Difference in AUPRC to another predictor, trace by trace; ``ahead`` and ``behind``
        count traces.
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
    """One arm over all traces: means with equal weight for each trace.

    Attributes
    ----------
    over_reference : tuple of float
        Per trace, the mean gain in goodput over the common reference.
    versus_reference : Interval, optional
        Mean of these; None for the reference itself. ``ahead`` and ``behind`` count traces.
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
    """The closed loop over all traces, for the arms that were played on each.

    Attributes
    ----------
    reference : str
        The best baseline on the mean, one for all traces, among those that need no forecast and
        recover as the jobs do.
    """

    reference: str
    arms: tuple[FleetArm, ...]


class OverFleets(msgspec.Struct, frozen=True, kw_only=True):
    """Results over all traces of a study.

    Attributes
    ----------
    traces : int
        Number of traces.
    """

    traces: int
    forecasts: tuple[FleetScore, ...] = ()
    goodput: FleetGoodput | msgspec.UnsetType = msgspec.UNSET
