"""The shape of ``torchloom.toml``: every table and key, its default and its range."""

from typing import Annotated, Any, Literal, get_args

import msgspec

from torchloom_core.suggest import nearest
from torchloom_core.wire.actions import Action
from torchloom_core.wire.limits import Name

ACTION_KINDS = frozenset(str(cls.__struct_config__.tag) for cls in get_args(Action))
"""What may stand at ``arbiter.actions.<kind>`` and in ``arbiter.forbidden``."""

_MOST = 1e9
"""As seconds 31 years, whose nanoseconds still fit an int64; keeps ``inf`` out."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
UpToADay = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
"""A time in seconds, a millisecond at least, as a lighthouse takes none that is shorter."""

Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9:][A-Za-z0-9._:%-]*\Z")]
"""A name or an address, as it stands in a URL."""


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[run]``: which training job this Weaver controls."""

    name: Name = "run"


class Weaver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[weaver]``: the daemon itself."""

    tick_s: Positive = 1.0
    state_dir: str = ".torchloom"
    stale_after_s: Positive = 10.0
    policy_budget_s: Positive = 0.5
    command_deadline_s: Positive = 60.0
    show: tuple[str, ...] = ("loss", "step_time_s")


class Broker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[broker]``: a nats-server of your own, or where the embedded one listens."""

    url: str = ""
    creds: str = ""
    worker_creds: str = ""
    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class Lighthouse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[lighthouse]``: torchft's lighthouse, which the Weaver starts where this table is."""

    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29510
    status_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29511
    min_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    join_timeout_s: UpToADay = 60.0
    heartbeat_timeout_s: UpToADay = 5.0
    quorum_tick_s: UpToADay = 0.1
    order: tuple[Name, ...] = ()


class Dashboard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[dashboard]``: the dashboard's page.

    Attributes
    ----------
    host, port : str, int
        Where it listens.
    names : tuple of str
        By which browsers reach it, beside ``host`` and those of this host's loopback.
    certificate, key : str
        Paths of PEM files, for TLS.
    """

    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29512
    names: tuple[Host, ...] = ()
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        """Refuse half of what TLS needs."""
        if bool(self.certificate) != bool(self.key):
            raise ValueError(f"need both certificate and key, was {self.certificate or self.key!r}")


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[costs]``: what failures and actions cost this run, in seconds if nothing else is said.

    Attributes
    ----------
    gpus_per_worker : float
        GPUs that one worker keeps busy.
    detect_s : float
        From a worker's death until the others notice.
    restart_s : float
        From there until they train again.
    unsaved_s : float
        The work lost on average when a worker dies: half a checkpoint interval, or one step
        where recovery is per step.
    replace_s : float
        How long a lost replica group stays away.
    others_wait_s : float
        How long the others wait for it where no standby can take over; 0: they go on without.
    inspect_s : float
        How long a node that was left is looked at before it can be used again; 0: nobody does.
    repair_s : float
        How long a node that failed is away.
    migrate_s : float
        How long a planned migration holds the run up.
    checkpoint_s : float
        How long one checkpoint holds the run up.
    state_bytes : float
        What a worker that joins is given, and what a checkpoint of it has, bytes; 0: not known.
        What is measured counts before it.

    Examples
    --------
    >>> from torchloom_core.plugin import Costs
    >>> from torchloom_core.testing import view_of
    >>> view = view_of(workers=4, costs=Costs(gpus_per_worker=8.0, restart_s=60.0))
    >>> view.costs.restart_s * view.costs.gpus_per_worker * len(view)
    1920.0
    """

    gpus_per_worker: Positive = 1.0
    detect_s: NotNegative = 5.0
    restart_s: NotNegative = 30.0
    unsaved_s: NotNegative = 1.0
    replace_s: NotNegative = 300.0
    others_wait_s: NotNegative = 0.0
    inspect_s: NotNegative = 0.0
    repair_s: NotNegative = 86_400.0
    migrate_s: NotNegative = 2.0
    checkpoint_s: NotNegative = 10.0
    state_bytes: NotNegative = 0.0


class ActionRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[arbiter.actions.<kind>]``: rails for one kind of action; absent keys do not bind."""

    cooldown_s: NotNegative | None = None
    limit_per_hour: Annotated[int, msgspec.Meta(ge=0)] | None = None
    budget_gpu_s_per_hour: NotNegative | None = None
    min_confidence: Share = 0.0
    approval: bool = False


class ForbiddenPair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of ``arbiter.forbidden``: this policy may not trigger this kind of action."""

    policy: str
    action: str


class Breaker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[arbiter.breaker]``: stop high-impact actions when too many go wrong or too much moves."""

    failures: Annotated[int, msgspec.Meta(ge=1)] = 3
    max_moved_share: Share = 0.5
    window_s: Positive = 300.0


class Arbiter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[arbiter]``: the rails every proposal must stay within."""

    dry_run: bool = False
    min_groups: Annotated[int, msgspec.Meta(ge=0)] = 1
    max_in_motion_share: Share = 0.34
    max_cordoned_share: Share = 0.1
    cooldown_s: NotNegative = 60.0
    holdout: Share = 0.0
    seed: int = 0
    forbidden: tuple[ForbiddenPair, ...] = ()
    actions: dict[str, ActionRule] = {}
    breaker: Breaker = Breaker()


class Guard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[guard]``: what is watched after a change that all ranks make together.

    Attributes
    ----------
    metric : str
        What is watched where a change does not say; empty: nothing.
    band : float
        How many times its own noise it may lie above what it was before.
    window_s : float
        How long it is watched, before and after.
    metrics : tuple of str
        All that a change may have watched.
    """

    metric: str = "loss"
    band: Positive = 3.0
    window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    metrics: tuple[str, ...] = ("loss", "grad_norm", "update_norm", "step_time_s")

    def __post_init__(self) -> None:
        """Refuse a metric that is none of those that may be watched."""
        if self.metric and self.metric not in self.metrics:
            known = ", ".join(self.metrics) or "none"
            raise ValueError(f"metric: need one of metrics ({known}), was {self.metric!r}")


class AllreduceMode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate.allreduce.modes.<name>]``: what a mode of compression does to a step.

    Attributes
    ----------
    sent : float, optional
        Bytes that a rank sends, relative to those of ``none``; absent: the formula of
        docs/compression.md.
    compress_s : float
        Time to compress and uncompress in one step.
    quality : float
        Progress of one step, relative to one of ``none``: steps that ``none`` needs to a loss
        over steps that this mode needs.
    link_use : float
        Of the slowest link's bandwidth what the mode makes use of: several connections that share
        a link leave some of it.
    """

    sent: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    compress_s: NotNegative = 0.0
    link_use: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    quality: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


SENT_BY_FORMULA = ("none", "bf16", "fp16", "int8", "topk")
"""Modes of which docs/compression.md says what they send of any gradient."""


class Allreduce(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate.allreduce]``: a run whose step time depends on its network, on a bandwidth trace.

    Attributes
    ----------
    gradient_bytes : int
        What a step's reductions come to before compression.
    compute_s : float
        A rank's own time of a step.
    modes : dict of str to AllreduceMode
        What the knob ``compression`` may be.
    start : str
        The mode that the run begins with.
    overlap : float
        Share of the bytes that go over the wire behind compute, as far as there is time.
    latency_s : float
        Of one hop of the ring.
    noise : float
        By how much the times of a step vary, relative, one standard deviation.
    heartbeat_s : float
        How often a worker reports.
    steps : float, optional
        To how much progress the time is told, in steps of ``none``; absent: what the best static
        mode makes in the time of the trace.
    """

    gradient_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    compute_s: Positive
    modes: Annotated[dict[str, AllreduceMode], msgspec.Meta(min_length=1)]
    start: str = "none"
    overlap: Share = 0.0
    latency_s: NotNegative = 0.0
    noise: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.03
    heartbeat_s: UpToADay = 1.0
    steps: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None

    def __post_init__(self) -> None:
        """Refuse a start that is no mode, and a mode of which nobody knows what it sends."""
        if self.start not in self.modes:
            known = ", ".join(self.modes)
            raise ValueError(f"start: need one of modes ({known}), was {self.start!r}")
        for name, mode in self.modes.items():
            if mode.sent is None and name not in SENT_BY_FORMULA:
                raise ValueError(
                    f"modes.{name}: need sent, since there is no formula for what it sends"
                    f"{nearest(name, SENT_BY_FORMULA)}"
                )


class Evaluate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate]``: the job that a backtest puts on the trace's nodes, and how it recovers.

    A group, a standby and a spare are made of whole nodes. ``checkpoint_interval_s`` is the work
    between two checkpoints, 0 for Daly's optimum at the failures at hand. ``recovery`` is
    ``restart`` (any failure stops all groups, which start again from the last checkpoint) or
    ``per_step`` (the other groups go on and only the step is lost, as with torchft). For the
    latter, ``join_stall_s``, ``leave_stall_s`` and ``kill_stall_s`` are how long those that go on
    stand still for a group that joins them, one that leaves in order, and one that dies. With
    ``allreduce`` it is another job, on a trace of bandwidth.
    """

    tick_s: Annotated[float, msgspec.Meta(ge=0.001, le=_MOST)] = 600.0
    days: Positive = 30.0
    groups: Annotated[int, msgspec.Meta(ge=1)] = 32
    nodes_per_group: Annotated[int, msgspec.Meta(ge=1)] = 1
    gpus_per_node: Annotated[int, msgspec.Meta(ge=1)] = 8
    standbys: Annotated[int, msgspec.Meta(ge=0)] = 1
    spares: Annotated[int, msgspec.Meta(ge=0)] = 2
    recovery: Literal["restart", "per_step"] = "restart"
    step_s: Positive = 10.0
    checkpoint_interval_s: NotNegative = 0.0
    proactive_checkpoint_s: NotNegative = 10.0
    local_checkpoint_s: NotNegative = 0.0
    local_interval_s: Positive = 600.0
    local_restart_s: NotNegative = 30.0
    rejoin_s: NotNegative = 30.0
    join_stall_s: NotNegative = 0.0
    leave_stall_s: NotNegative = 0.0
    kill_stall_s: NotNegative = 0.0
    provision_s: NotNegative = 600.0
    warm_up_s: NotNegative = 600.0
    inspect_s: NotNegative = 3600.0
    repair_s: NotNegative = 86_400.0
    command_s: NotNegative = 1.0
    forecast_s: NotNegative = 1.0
    allreduce: Allreduce | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. A plugin is active when it has a table under policies or predictors."""

    run: Run = Run()
    weaver: Weaver = Weaver()
    broker: Broker = Broker()
    lighthouse: Lighthouse | None = None
    dashboard: Dashboard = Dashboard()
    costs: Costs = Costs()
    arbiter: Arbiter = Arbiter()
    guard: Guard = Guard()
    evaluate: Evaluate = Evaluate()
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}


class PolicySwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``[policies.<name>]`` that are the Weaver's, not the policy's own.

    ``act`` grants as the arbiter says; ``dry_run`` weighs the policy's proposals with the
    others and sends nothing; ``shadow`` records them outside the competition.
    """

    mode: Literal["act", "dry_run", "shadow"] = "act"


class ModelSwitch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of ``[predictors.<name>]`` where it names a fitted model, which has its own options.

    Attributes
    ----------
    model : str
        The folder that ``torchloom fit`` wrote.
    every_s : float, optional
        How often to ask it; absent: as often as it was when it was fitted.
    """

    model: str
    every_s: Positive | None = None
