"""Results of an evaluation, as ``report.json`` has them.

The study creates them; the tables and the page show them. They are deterministic: the same trace,
config and seeds give the same bytes.
"""

from typing import Any, Literal

import msgspec

from torchloom_core.lab.evaluate.allreduce_results import AllreduceSimulation
from torchloom_core.lab.evaluate.arm import ArmKind, Verdicts
from torchloom_core.lab.learning.forecast_score import ForecastScore, Interval

REPORT_VERSION = 2

# --- forecasts ---


class ReplayedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals of one policy in an open loop, where commands get no acks.

    ``what`` describes the arm and names the forecasts that it reads; ``silent`` are predictors
    that gave no probability for any worker.
    """

    policy: str
    what: str = ""
    proposals: int
    granted: int
    denied_by: dict[str, int] = {}
    incidents_found: int = 0
    incidents: int = 0
    false_alarms_per_node_day: float = 0.0
    failed: str = ""
    silent: tuple[str, ...] = ()


# --- goodput ---


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a simulated run."""

    ts_ns: int
    kind: str
    place: str = ""
    detail: str = ""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run: an arm under one seed.

    ``buckets`` are GPU-seconds, and add up to ``wall_s x gpus``. ``goodput`` is the useful
    share of that; ``as_planned`` the same if groups beyond the plan count nothing, absent where
    there were none; ``ettr`` the useful share of the job's own GPU time, without groups beyond the
    plan. ``decisions`` are granted actions that change the run; ``invalid_decisions`` those based
    on telemetry of another load, None where no load-dependent metric was read. ``moves`` are
    migrations and drains, ``right_moves`` those whose old node failed within the horizon.
    ``silent`` are predictors that gave no probability in the whole run.
    """

    arm: str
    seed: int
    wall_s: float
    gpus: int
    job_gpus: int
    buckets: dict[str, float]
    goodput: float
    as_planned: float | msgspec.UnsetType = msgspec.UNSET
    ettr: float
    failures: int = 0
    migrations: int = 0
    saves: int = 0
    proactive_saves: int = 0
    decisions: int = 0
    invalid_decisions: int | None = None
    moves: int = 0
    right_moves: int = 0
    operations: Verdicts = Verdicts()
    quarantined: dict[str, str] = {}
    silent: tuple[str, ...] = ()
    model_events: int = 0
    timeline: tuple[TimelineEntry, ...] = ()


class AsPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """An arm whose run may grow, if groups beyond the plan count nothing."""

    goodput: Interval
    versus_reference: Interval


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over all seeds.

    An absent ``recovery`` is the job's. ``versus_reference`` is the paired difference in goodput,
    same seeds, to the best baseline that needs no forecast and recovers as the job does;
    ``versus_without``, of an arm with policies, the same to the same job without them: what the
    policies gain, as both start with the same checkpoint interval. ``as_planned`` is only of an arm
    whose run may have more groups than planned. ``to_oracle`` is a candidate's share of the
    oracle's gain over the reference.

    ``buckets`` are mean shares of all GPU-seconds; ``decisions`` granted actions that change the
    run; ``right_moves`` those away from a node that failed within the horizon: if the job returned
    to it, several may count for one failure. ``invalid_share`` of its decisions are based on
    telemetry that was recorded under another load; None without decisions, or without
    load-dependent metrics. ``silent`` counts, by predictor, the runs in which it gave no
    probability for any worker.
    """

    name: str
    kind: ArmKind
    what: str
    needs_forecast: bool
    recovery: Literal["restart", "per_step"] | None = None
    goodput: Interval
    ettr: Interval
    versus_reference: Interval | None = None
    versus_without: Interval | None = None
    as_planned: AsPlanned | msgspec.UnsetType = msgspec.UNSET
    to_oracle: float | None = None
    buckets: dict[str, float] = {}
    failures: float = 0.0
    migrations: float = 0.0
    moves: float = 0.0
    right_moves: float = 0.0
    decisions: float = 0.0
    operations: Verdicts = Verdicts()
    invalid_share: float | None = None
    quarantined: dict[str, str] = {}
    silent: dict[str, int] = {}


class SensitivityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Gain of an arm over the same job without it, with one cost times ``factor``."""

    arm: str
    cost: str
    factor: float
    gain: Interval


AS_PLANNED = " as planned"
"""Suffix of an arm whose run grows, for the result without groups beyond the plan."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an arm with one number of spares; useful time is over all GPUs.

    ``to_best`` is the paired difference in goodput to the value with the highest; None for that
    one. ``more_gpu_h_per_day`` is the increase per further spare since the previous value; None for
    the first.
    """

    value: int
    goodput: Interval
    to_best: Interval | None
    useful_gpu_h_per_day: Interval
    more_gpu_h_per_day: Interval | None


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of the arms by number of spares, each of which is paid for.

    ``name`` is the varied key of ``[evaluate]``, and ``beside`` the other key and its value, such
    as ``1 standbys``: paid for at every value. One more costs ``gpu_h_per_day``. ``lines``, in
    order of the values, and ``best``, the value with the highest goodput, are by arm, and by
    ``<arm> as planned`` where its run grows.
    """

    name: str
    beside: str
    gpu_h_per_day: float
    lines: dict[str, tuple[SweepPoint, ...]]
    best: dict[str, int]


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Precision above which a migration pays: ``p (D + R + unsaved) > G + away``, in GPU-seconds.

    ``price_gpu_s`` is the price with all standbys left, ``last_price_gpu_s`` with the last one.
    """

    precision: float
    loss_gpu_s: float
    price_gpu_s: float
    last_price_gpu_s: float
    measured: dict[str, float] = {}
    """Arm to the share of its moves whose old node failed within the horizon."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop: goodput of every arm.

    ``horizon_s`` is the oracle's horizon, and the time within which a move must prove right.
    """

    job: dict[str, Any]
    seeds: tuple[int, ...]
    reference: str
    oracle: str
    horizon_s: float
    arms: tuple[ArmSummary, ...]
    runs: tuple[RunResult, ...]
    break_even: BreakEven
    sensitivity: tuple[SensitivityPoint, ...] = ()
    sweep: Sweep | msgspec.UnsetType = msgspec.UNSET
    unknown_follows: dict[str, tuple[ArmSummary, ...]] = {}
    """``component`` and ``job``: the arms with failures of unknown cause assumed to follow that."""


# --- over several traces, each of which is one fleet ---


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

    They are over the traces that have the figure: without a failure there is no AUPRC and no
    recall, without an alarm no precision. ``prevalence`` is over those with an AUPRC. ``versus``
    has the difference in AUPRC to each other predictor, trace by trace; ``ahead`` and ``behind``
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


# --- the report ---


class TraceResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results on one trace.

    ``trace`` describes the trace; its ``name`` is unique in the study. ``config`` has the parts of
    the config that affect the results.
    """

    trace: dict[str, Any]
    config: dict[str, Any]
    assumptions: tuple[str, ...]
    forecasts: tuple[ForecastScore, ...] = ()
    policies: tuple[ReplayedPolicy, ...] = ()
    simulation: Simulation | None = None
    allreduce: AllreduceSimulation | msgspec.UnsetType = msgspec.UNSET

    @property
    def name(self) -> str:
        """The name of the trace in the study."""
        return str(self.trace["name"])


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A study, as it stands in ``report.json``; ``fleets`` are the results over several traces."""

    mode: Literal["replay", "simulate"]
    traces: tuple[TraceResults, ...]
    fleets: OverFleets | msgspec.UnsetType = msgspec.UNSET
    torchloom: str = ""
    version: int = REPORT_VERSION
