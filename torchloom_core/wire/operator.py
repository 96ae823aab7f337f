"""The requests of people to a running Weaver, and its answers.

Every verb is a NATS request on ``tl.ctl.<run>.<person>.<verb>`` with a JSON body, sent by the
command line or a plain ``nats req``. ``status`` and ``knobs`` only read; the others become a
:class:`~torchloom_core.wire.requests.Request` to the kernel, which is recorded. Bodies of
``knob.*``, ``propose``, ``approve`` and ``deny`` may have an ``"id"`` (:data:`RequestId`): a
request that is sent again with the same id gets the same answer and is not done again. All
requests that act may have a ``"session"``: the web page that sends them.

==================  =======================================  ==========================
verb                body                                     answer
==================  =======================================  ==========================
``status``          empty or :class:`Page`                   :class:`Status`
``knobs``           empty or :class:`Page`                   :class:`KnobTable`
``knob.set``        :class:`KnobSet`                         :class:`Answer`
``knob.unset``      :class:`KnobUnset`                       :class:`Answer`
``propose``         ``{"action": {"kind": ..., ...}}``,      :class:`Answer`
                    ``"sure"`` as of :class:`KnobSet`
``approve``         ``{"proposal": id}``                     :class:`Answer`
``deny``            ``{"proposal": id, "reason": ...}``      :class:`Answer`
``actions.stop``    empty or :class:`FromSession`            :class:`Answer`
``actions.resume``  empty or :class:`FromSession`            :class:`Answer`
``annotate``        :class:`Annotation`                      :class:`Answer`
``control.take``    :class:`ControlTaken`                    :class:`Answer`
``control.release`` :class:`FromSession`                     :class:`Answer`
==================  =======================================  ==========================
"""

from typing import Annotated

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.limits import (
    MAX_KNOBS,
    MAX_TEXT,
    KnobName,
    KnobValue,
    KnobValues,
    Name,
    RackName,
    RoleName,
    SessionName,
)
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.programs import ProgramStatus
from torchloom_core.wire.suspensions import SuspensionChanged

RequestId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
"""The sender's id of a request, new for each, so that the request can be sent again."""


SUMMARISED = 200
"""Runs of more workers than these are summarised, where a :class:`Page` wants a summary."""


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of an answer with an entry per worker that follows the worker ``after``.

    An answer with ``more`` is continued by a request for the page after its last worker. Without
    ``workers`` the answer has no entries of workers.

    Of ``status`` alone: with ``summary`` a run of more than :data:`SUMMARISED` workers is answered
    without their entries, with ``counts`` and ``unusual`` instead. ``state``, ``group`` and
    ``role`` select workers, the state as ``ending`` or ``state`` of :class:`WorkerStatus` shows it;
    ``limit`` is the most of them in one answer, 0: as many as fit.
    """

    after: RackName = ""
    workers: bool = True
    summary: bool = False
    state: RackName = ""
    group: RackName = ""
    role: RoleName = ""
    limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0


class FromSession(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A request without parameters except the web page that sends it."""

    session: SessionName = ""


class KnobSet(FromSession, frozen=True, kw_only=True):
    """Set a knob on one worker, or on all that have it when ``worker`` is absent.

    ``role`` names whose knob it is, if several roles have one of its name.
    Several run-fenced knobs can be set at once, the others in ``also``, with a ``guard``. A value
    that is far from those in use is refused unless the person is ``sure``.
    """

    knob: KnobName
    value: KnobValue
    also: KnobValues = {}
    worker: Name | None = None
    role: RoleName = ""
    guard: Guard | None = None
    sure: bool = False
    id: RequestId = ""

    def action(self) -> ChangeKnob | ChangeKnobs:
        """Return the action to propose.

        Raises
        ------
        MessageError
            If several knobs or a guard are for one worker, or a knob is named twice.
        """
        if not self.also and self.guard is None:
            role = self.role or msgspec.UNSET
            return ChangeKnob(knob=self.knob, value=self.value, worker=self.worker, role=role)
        if self.worker is not None:
            raise MessageError(
                "knob.set: several knobs or a guard apply to all workers: need no worker, "
                f"was {self.worker!r}"
            )
        if len(self.also) >= MAX_KNOBS:
            raise MessageError(
                f"knob.set: need at most {MAX_KNOBS} knobs, was {len(self.also) + 1}"
            )
        if self.knob in self.also:
            raise MessageError(f"knob.set: need each knob once, was {self.knob!r} twice")
        values = {self.knob: self.value, **self.also}
        return ChangeKnobs(values=values, guard=self.guard, role=self.role)


class KnobUnset(FromSession, frozen=True, kw_only=True):
    """Drop the desired value of a knob, of one worker or, when ``worker`` is absent, of all.

    ``role`` names whose, if several roles have a desired value of it.
    """

    knob: KnobName
    worker: Name | None = None
    role: RoleName = ""
    id: RequestId = ""


class Annotation(FromSession, frozen=True, kw_only=True):
    """Add a text to the record."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
    id: RequestId = ""


class ControlTaken(FromSession, frozen=True, kw_only=True):
    """Take the control lease; see :class:`~torchloom_core.wire.requests.TakeControl`."""

    session: Annotated[SessionName, msgspec.Meta(min_length=1)]
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    force: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request; ``ids`` are its commands."""

    ok: bool
    text: str
    ids: tuple[str, ...] = ()


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
    ``recording`` is since when and why the trajectory is not written, empty if it is.

    ``groups`` is how many replica groups train. With ``summary`` the workers are left out:
    ``counts`` has their number by role and state, ``unusual`` at most 20 of them that loop in
    crashes, are silent, failed, stall or are at risk, and ``flights`` is the first 20.
    ``recording`` is since when and why the trajectory is not written, empty if it is. ``leader`` is
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


class KnobTable(msgspec.Struct, frozen=True, kw_only=True):
    """Every knob of the run: its specification, desired value and present values.

    A later :class:`Page` has only the next ``values``. If the specs exceed half a message, those
    that the fewest workers declare are left out, ``left_out`` in number. ``tried`` are the knobs
    whose change a standby can preview.

    In a run of several roles ``of_role`` has the specifications by role, as two roles may have a
    knob of one name, and ``roles`` the role of each worker in ``values`` that is no trainer.
    """

    specs: tuple[KnobSpec, ...] = ()
    desired: tuple[KnobDesired, ...] = ()
    values: dict[str, dict[str, KnobValue]] = {}
    more: bool = False
    left_out: int = 0
    tried: tuple[str, ...] = ()
    of_role: dict[str, tuple[KnobSpec, ...]] = {}
    roles: dict[str, str] = {}

    def by_role(self) -> "dict[str, KnobTable]":
        """Return the table of each role; of a run with one role this one, as that of ""."""
        if not self.of_role:
            return {"": self}
        return {
            role: msgspec.structs.replace(
                self,
                specs=specs,
                desired=tuple(d for d in self.desired if (d.role or TRAINER) == role),
                values={w: v for w, v in self.values.items() if self.role_of(w) == role},
                of_role={},
            )
            for role, specs in self.of_role.items()
        }

    def role_of(self, worker: str) -> str:
        """Return the role of a worker in ``values``."""
        return self.roles.get(worker, TRAINER)
