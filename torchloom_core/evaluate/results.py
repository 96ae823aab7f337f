"""What an evaluation found, as it stands in ``report.json``.

The study fills these, the table and the page only show them. All of it is deterministic: the
same trace, config and seeds give the same bytes.
"""

from typing import Any, Literal

import msgspec

from torchloom_core.evaluate.allreduce_results import AllreduceSimulation
from torchloom_core.evaluate.arm_results import ArmKind, Verdicts
from torchloom_core.evaluate.fleet_results import OverFleets
from torchloom_core.learning.forecast_score import ForecastScore, Interval

REPORT_VERSION = 2

# --- forecasts ---


class ReplayedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy said in an open loop: nobody answered its commands.

    ``what`` is the arm's sentence, which names whose forecasts were read; ``silent`` are
    predictors that gave no probability of anybody.
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
    """Something that happened in one simulated run."""

    ts_ns: int
    kind: str
    place: str = ""
    detail: str = ""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run: an arm under one seed.

    ``buckets`` are GPU-seconds, and add up to ``wall_s x gpus``. ``goodput`` is the useful
    share of that; ``as_planned`` the same if more groups than planned are worth nothing, absent
    where there never were more; ``ettr`` the useful share of the time of the job's own GPUs, which
    counts no more groups than planned. ``decisions`` are
    granted actions that change something; ``invalid_decisions`` those of them that rest on
    telemetry of another load, None where none that depends on the load was read. ``moves`` counts
    migrations and drains among the decisions, ``right_moves`` those of them that left a node which
    was hit within the horizon. ``silent`` predictors gave no probability in all of the run.
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
    """An arm whose run may grow, if more groups than planned are worth nothing."""

    goodput: Interval
    versus_reference: Interval


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One arm over all seeds.

    Attributes
    ----------
    recovery : "restart" or "per_step", optional
        The arm's own way; absent: the job's.
    versus_reference : Interval
        Paired difference in goodput, same seeds, to the best baseline that needs no forecast
        and recovers as the job does.
    versus_without : Interval
        Of an arm with policies: the same to the job that is set up as the arm's and that
        nobody watches over. What policies are worth shows here; the interval between
        checkpoints that the arm begins with is in both.
    as_planned : AsPlanned, optional
        Only of an arm whose run may have more groups than the job is planned for.
    decisions : float
        Granted actions that change something; an arm with none did nothing.
    to_oracle : float, optional
        Of a candidate: share of the way from the reference to the oracle, 1 if it is as good.
    right_moves : float
        Of its moves, those that left a node which failed within the forecast's horizon; where
        the job came back to the node meanwhile, several may be right about one failure.
    invalid_share : float, optional
        Of its decisions, those that rest on telemetry which was recorded under another load;
        None where it decided nothing, or read nothing that depends on the load.
    silent : dict of str to int
        Predictor to the number of runs in which it gave no probability of anybody.
    buckets : dict of str to float
        Mean share of all GPU-seconds.
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
    """What an arm gains over the same job without it if one cost is ``factor`` times as large."""

    arm: str
    cost: str
    factor: float
    gain: Interval


AS_PLANNED = " as planned"
"""After the name of an arm whose run grows, if more groups than planned are worth nothing."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm comes to with so many spares.

    Attributes
    ----------
    to_best : Interval, optional
        Paired difference in goodput to the value with the highest; None for that one.
    useful_gpu_h_per_day : Interval
        Of all GPUs together.
    more_gpu_h_per_day : Interval, optional
        What each further one brings of that since the value before; None for the first.
    """

    value: int
    goodput: Interval
    to_best: Interval | None
    useful_gpu_h_per_day: Interval
    more_gpu_h_per_day: Interval | None


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm fares with more and more spares, each of which is paid for.

    Attributes
    ----------
    name : str
        The key of ``[evaluate]`` that is swept.
    beside : str
        The other key and its value, as ``1 standbys``: paid for with every value.
    gpu_h_per_day : float
        What one more costs.
    lines : dict of str to tuple of SweepPoint
        By arm, and by ``<arm> as planned`` where its run grows; the least value first.
    best : dict of str to int
        By the same names, the value with the highest goodput.
    """

    name: str
    beside: str
    gpu_h_per_day: float
    lines: dict[str, tuple[SweepPoint, ...]]
    best: dict[str, int]


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """From which precision on a migration pays: ``p (D + R + unsaved) > G + away``, in GPU-seconds.

    ``price_gpu_s`` is that of the first standby of the job, ``last_price_gpu_s`` of the last one.
    """

    precision: float
    loss_gpu_s: float
    price_gpu_s: float
    last_price_gpu_s: float
    measured: dict[str, float] = {}
    """Arm to the share of its moves that left a node which was then hit."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The closed loop: goodput of every arm.

    ``horizon_s`` is how far ahead the oracle is told, and in which time a move must prove right.
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
    """``component`` and ``job``: the arms with every unknown failure taken that way."""


class TraceResults(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on one trace.

    ``trace`` says which: its ``name`` tells it apart from the others of the study. ``config`` is
    what of the config had a say in it, ``assumptions`` what was taken for granted.
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
        """What the trace is called in the study."""
        return str(self.trace["name"])


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A study, as it stands in ``report.json``.

    Attributes
    ----------
    traces : tuple of TraceResults
        In the order in which they were asked for; one at the least.
    fleets : OverFleets, optional
        What all of them say together; absent where there is one.
    """

    mode: Literal["replay", "simulate"]
    traces: tuple[TraceResults, ...]
    fleets: OverFleets | msgspec.UnsetType = msgspec.UNSET
    torchloom: str = ""
    version: int = REPORT_VERSION
