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

    They are over the traces that have the figure: a trace without a failure has no AUPRC, for which
    ``prevalence`` is, and no recall, one without an alarm no precision. ``versus`` has the
    difference in AUPRC to each other predictor, trace by trace; ``ahead`` and ``behind`` count
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
    """One arm over all traces: means with equal weight for each trace.

    ``over_reference`` has, per trace, the mean gain in goodput over the common reference;
    ``versus_reference`` is their mean, None for the reference itself; ``versus_without`` the same
    for an arm with policies over the same job without them. ``ahead`` and ``behind`` count traces.
    """

    name: str
    kind: ArmKind
    goodput: Interval
    over_reference: tuple[float, ...]
    versus_reference: Interval | None = None
    versus_without: Interval | None = None


class FleetGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop over all traces, for the arms that were played on each.

    ``reference`` is the best baseline on the mean, one for all traces, among those that need no
    forecast and recover as the jobs do.
    """

    reference: str
    arms: tuple[FleetArm, ...]


class OverFleets(msgspec.Struct, frozen=True, kw_only=True):
    """Results over all ``traces`` of a study."""

    traces: int
    forecasts: tuple[FleetScore, ...] = ()
    goodput: FleetGoodput | msgspec.UnsetType = msgspec.UNSET
