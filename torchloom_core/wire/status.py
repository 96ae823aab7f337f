"""The run at one moment: the answer to the request ``status``."""

import msgspec

from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.programs import ProgramStatus
from torchloom_core.wire.suspensions import SuspensionChanged


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the live table; an age is null before the worker's first telemetry.

    ``ending`` is empty while the process runs. Intended ends are ``drained``, ``finished``,
    ``interrupted`` (Ctrl-C) and ``terminated`` (SIGTERM). Faults are ``killed`` (any other
    signal), ``failed`` (any other status) and ``gone`` (status unknown). ``crash-looping``: its
    launcher restarts it, and it ends before it attaches. ``silent``: no heartbeat for
    ``weaver.stale_after_s``.
    """

    worker: str
    group: str
    node: str
    rack: str
    state: str
    step: int
    incarnation: int
    heartbeat_age_s: float | None
    progress_age_s: float | None
    knobs: dict[str, KnobValue] = {}
    metrics: dict[str, float] = {}
    hazards: dict[str, float] = {}
    ending: str = ""
    role: str = TRAINER
    stage: int = 0


class FlightStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One command in flight."""

    id: str
    worker: str
    verb: str
    status: str
    age_s: float
    incarnation: int = 0
    cause: str = ""


class PluginStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One active policy or predictor."""

    name: str
    kind: str
    state: str
    detail: str = ""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that waits for a person's approval, until ``until_ns``; its price as proposed.

    ``summary`` is its action in words, such as ``migrate group g1``.
    """

    proposal: str
    policy: str
    action: str
    target: str
    summary: str = ""
    reason: str
    gain_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    confidence: float = 1.0
    until_ns: int = 0


class AtRisk(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that a predictor expects to fail within ``horizon_s``, with which probability."""

    worker: str
    predictor: str
    hazard: float
    horizon_s: float
    why: str = ""


class CrashLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher restarts ranks that end before they attach.

    ``failed`` restarts ended so since the last rank attached; ``restart`` is the number of the
    last one, of at most ``most``, and ``error`` its cause. ``gave_up``: the launcher has ended.
    ``worker`` is the one whose last incarnation reported it.
    """

    worker: str
    node: str
    failed: int
    restart: int
    most: int
    error: str
    gave_up: bool = False

    @property
    def text(self) -> str:
        """The crash loop in one sentence."""
        times = "restart" if self.failed == 1 else "restarts"
        end = "; the launcher has given up" if self.gave_up else ""
        return (
            f"crash-looping: {self.failed} {times} on {self.node} ended before they attached, "
            f"the last was {self.restart} of {self.most}: {self.error}{end}"
        )


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The run at one moment; a later :class:`Page` has only the next ``workers``.

    ``flights`` and ``waiting`` are the first 1,000 entries, ``at_risk`` the 20 most likely
    failures of each predictor. ``controller`` is the session with the control lease, or empty.
    ``knobs_waiting`` are values of an earlier job, which a person has to confirm.
    ``step_time_s`` is the median step time of the training workers; None: none reports it.

    ``groups`` is how many replica groups train. With ``summary`` the workers are left out:
    ``counts`` has their number by role and state, ``unusual`` at most 20 of them that loop in
    crashes, are silent, failed, stall or are at risk, and ``flights`` is the first 20.
    ``recording`` is since when and why the trajectory is not written, empty if it is.
    ``broker_full`` is what waits until the server has space, empty if nothing does. ``leader`` is
    the Weaver that answers, ``standbys`` those that wait to replace it.
    """

    run: str
    epoch: int
    ts_ns: int
    stopped: bool
    dry_run: bool
    ticks: int
    malformed: int
    workers: tuple[WorkerStatus, ...] = ()
    more: bool = False
    flights: tuple[FlightStatus, ...] = ()
    flights_in_all: int = 0
    plugins: tuple[PluginStatus, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    knobs_waiting: tuple[KnobDesired, ...] = ()
    crash_loops: tuple[CrashLoop, ...] = ()
    at_risk: tuple[AtRisk, ...] = ()
    cordoned: tuple[str, ...] = ()
    cordoned_until_ns: dict[str, int] = {}
    suspensions: tuple[SuspensionChanged, ...] = ()
    trajectory: str = ""
    recording: str = ""
    broker_full: str = ""
    lighthouse: str = ""
    controller: str = ""
    control_until_ns: int = 0
    step_time_s: float | None = None
    programs: tuple[ProgramStatus, ...] = ()
    summary: bool = False
    counts: dict[str, dict[str, int]] = {}
    groups: int = 0
    unusual: tuple[WorkerStatus, ...] = ()
    leader: str = ""
    standbys: tuple[str, ...] = ()
