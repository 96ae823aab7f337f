"""The schema of ``torchloom.toml``: every table and key, its default and its range."""

from typing import Annotated, Any, Literal

import msgspec

from torchloom_core.floor.suggest import nearest
from torchloom_core.wire.limits import Name
from torchloom_core.wire.placement import TRAINER

_MOST = 1e9
"""In seconds 31 years: as nanoseconds they still fit an int64. Refuses ``inf``."""

Positive = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
UpToADay = Annotated[float, msgspec.Meta(ge=0.001, le=86_400)]
"""A time in seconds; at least a millisecond, the resolution of a lighthouse's options."""

Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9:][A-Za-z0-9._:%-]*\Z")]
"""A name or an address, as it stands in a URL."""

HostAndPort = Annotated[str, msgspec.Meta(pattern=r"\A((\[[0-9A-Fa-f:.]+\]|[^\s:]+):\d{1,5})?\Z")]


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
    """``[broker]``: the URL of your own nats-server, or the address of the embedded one."""

    url: str = ""
    creds: str = ""
    worker_creds: str = ""
    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class Lighthouse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[lighthouse]``: the lighthouse that the Weaver starts if this table is present."""

    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29510
    status_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29511
    min_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    join_timeout_s: UpToADay = 60.0
    heartbeat_timeout_s: UpToADay = 5.0
    quorum_tick_s: UpToADay = 0.1
    order: tuple[Name, ...] = ()


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[rendezvous]``: the rendezvous of trainers that are split over workers."""

    address: HostAndPort = ""


class Dashboard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[dashboard]``: the dashboard's page."""

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
    """``[costs]``: what failures and actions cost this run.

    Attributes
    ----------
    gpus_per_worker : float
        GPUs per worker.
    detect_s : float
        From a worker's failure until the other workers detect it.
    restart_s : float
        From the detection until the workers train again.
    unsaved_s : float
        The work lost on average when a worker fails: half a checkpoint interval, or one step
        where recovery is per step.
    replace_s : float
        Until a lost replica group is back.
    others_wait_s : float
        How long the other groups wait for it if no standby takes over; 0: no wait.
    inspect_s : float
        How long a node is inspected after a move, before it is used again; 0: no inspection.
    repair_s : float
        How long the repair of a failed node takes.
    migrate_s : float
        How long a planned migration stalls the run.
    checkpoint_s : float
        How long one checkpoint stalls the run.
    state_bytes : float
        Size of a worker's state, which a joining worker receives and a checkpoint stores; 0:
        unknown. A measured size takes precedence.

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
    """``[arbiter.actions.<kind>]``: safety limits for one kind of action; absent: none."""

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
    """``[arbiter.breaker]``: deny high-impact actions after too many failures or moves."""

    failures: Annotated[int, msgspec.Meta(ge=1)] = 3
    max_moved_share: Share = 0.5
    window_s: Positive = 300.0


class Arbiter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[arbiter]``: the safety limits every proposal must stay within."""

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


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[roles.<name>]``: one of several programs of the run, see docs/roles.md.

    ``policies`` see only its workers.
    """

    min_groups: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Minimum number of its replica groups that keep training; absent: that of ``[arbiter]``."""
    max_in_motion_share: Share | None = None
    """Maximum share of its groups that are moved at once; absent: that of ``[arbiter]``."""
    price: Positive = 1.0
    """What a GPU-second of the role is worth, in GPU-seconds."""
    rendezvous: HostAndPort = ""
    """Address of its rendezvous, ``host:port``, if it is a pipeline; empty: none."""
    policies: dict[str, dict[str, Any]] = {}


class Guard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[guard]``: the metric that is watched after a fenced change."""

    metric: str = "loss"
    band: Positive = 3.0
    window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    metrics: tuple[str, ...] = ("loss", "grad_norm", "update_norm", "step_time_s")

    def __post_init__(self) -> None:
        """Refuse a metric that is not in ``metrics``."""
        if self.metric and self.metric not in self.metrics:
            allowed = ", ".join(self.metrics) or "none"
            raise ValueError(f"metric: need one of metrics ({allowed}), was {self.metric!r}")


class AllreduceMode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate.allreduce.modes.<name>]``: how a compression mode changes a step."""

    sent: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    """Bytes that a rank sends, relative to those of ``none``; absent: the formula of
    docs/compression.md."""
    compress_s: NotNegative = 0.0
    """Time to compress and uncompress in one step."""
    link_use: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    """Share of the slowest link's bandwidth that the mode uses: several connections that share a
    link leave some of it unused."""
    quality: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Progress of one step, relative to one of ``none``: steps to a loss with ``none`` over steps
    with this mode."""


SENT_BY_FORMULA = ("none", "bf16", "fp16", "int8", "topk")
"""Modes for whose sent bytes docs/compression.md has a formula."""


class Allreduce(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate.allreduce]``: a run whose step time depends on a trace of bandwidth."""

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
        """Refuse a start that is not a mode, and a mode whose sent bytes are unknown."""
        if self.start not in self.modes:
            modes = ", ".join(self.modes)
            raise ValueError(f"start: need one of modes ({modes}), was {self.start!r}")
        for name, mode in self.modes.items():
            if mode.sent is None and name not in SENT_BY_FORMULA:
                raise ValueError(
                    f"modes.{name}: need sent: there is no formula for its bytes"
                    f"{nearest(name, SENT_BY_FORMULA)}"
                )


class Evaluate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[evaluate]``: the job that a backtest puts on the trace's nodes, and how it recovers.

    A group, a standby and a spare consist of whole nodes. ``checkpoint_interval_s`` is the work
    between two checkpoints, 0 for Daly's optimum at the trace's failure rate. ``recovery`` is
    ``restart`` (any failure stops all groups, which start again from the last checkpoint) or
    ``per_step`` (the other groups continue and only the step is lost, as with torchft). With
    ``per_step``, ``join_stall_s``, ``leave_stall_s`` and ``kill_stall_s`` are how long the other
    groups stall when a group joins, is drained, or fails. With ``allreduce`` the job is another
    one, on a trace of bandwidth.
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
    """The whole file. A plugin is active when it has a table under its kind."""

    run: Run = Run()
    weaver: Weaver = Weaver()
    broker: Broker = Broker()
    lighthouse: Lighthouse | None = None
    rendezvous: Rendezvous = Rendezvous()
    dashboard: Dashboard = Dashboard()
    costs: Costs = Costs()
    arbiter: Arbiter = Arbiter()
    roles: dict[str, Role] = {}
    guard: Guard = Guard()
    evaluate: Evaluate = Evaluate()
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}
    effectors: dict[str, dict[str, Any]] = {}

    def min_groups(self, role: str) -> int:
        """Return the least number of groups of a role that go on training."""
        own = self.roles.get(role, Role()).min_groups
        return self.arbiter.min_groups if own is None else own


class PolicySwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``[policies.<name>]`` that the Weaver reads, not the policy.

    ``act``: the arbiter decides. ``dry_run``: it decides, and no command is sent. ``shadow``:
    proposals are recorded only and do not compete with others.

    The roles whose workers it sees. A policy of ``[roles.<name>.policies]`` sees that role, and has
    no such key.
    """

    mode: Literal["act", "dry_run", "shadow"] = "act"
    roles: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)] = (TRAINER,)


class EffectorSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of ``[effectors.<name>]`` that the Weaver reads, not the effector.

    ``act``: it gets the events that it subscribed to. ``dry_run``: the record has what it would
    get, and nothing is sent.
    """

    mode: Literal["act", "dry_run"] = "dry_run"


class ModelSwitch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[predictors.<name>]`` where it names a fitted model, which has its own options."""

    model: str
    """The folder that ``torchloom fit`` wrote."""
    every_s: Positive | None = None
    """How often to call it; absent: as often as when it was fitted."""
