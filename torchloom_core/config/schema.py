"""The schema of ``torchloom.toml``: every table and key, its default and its range."""

from typing import Annotated, Any, Literal

import msgspec

from torchloom_core.config.evaluation import Evaluate
from torchloom_core.config.monitoring import FAILED_STEPS, Metrics, Tracing
from torchloom_core.config.ranges import HostAndPort, NotNegative, Positive, Share
from torchloom_core.config.services import (
    Broker,
    Dashboard,
    Join,
    Lighthouse,
    Rendezvous,
    Standby,
)
from torchloom_core.config.trajectory import Trajectory
from torchloom_core.wire.limits import Name
from torchloom_core.wire.placement import TRAINER


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
    forget_after_s: Positive = 86_400.0
    show: tuple[str, ...] = ("loss", "step_time_s")


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


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. A plugin is active when it has a table under its kind."""

    run: Run = Run()
    weaver: Weaver = Weaver()
    broker: Broker = Broker()
    standby: Standby = Standby()
    join: Join = Join()
    lighthouse: Lighthouse | None = None
    rendezvous: Rendezvous = Rendezvous()
    dashboard: Dashboard = Dashboard()
    trajectory: Trajectory | None = None
    metrics: Metrics | None = None
    tracing: Tracing | None = None
    costs: Costs = Costs()
    arbiter: Arbiter = Arbiter()
    roles: dict[str, Role] = {}
    guard: Guard = Guard()
    evaluate: Evaluate = Evaluate()
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}
    effectors: dict[str, dict[str, Any]] = {}
    notify: dict[str, dict[str, Any]] = {}

    @property
    def metrics_kept(self) -> tuple[str, ...]:
        """The metrics that the Weaver itself reads, beside those of its plugins."""
        own = (FAILED_STEPS,) if self.metrics else ()
        return (*self.weaver.show, *self.guard.metrics, *own)

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
