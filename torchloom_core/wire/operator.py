"""What a person can ask of a running Weaver, and what it answers.

Every verb is a NATS request on ``tl.ctl.<run>.<verb>`` with a JSON body; the command line and
a plain ``nats req`` send the same ones. ``status`` and ``knobs`` only read; the others become
a :class:`~torchloom_core.wire.requests.Request` to the kernel and are on the record. Bodies of
``knob.*``, ``propose``, ``approve`` and ``deny`` may carry an ``"id"`` (:data:`RequestId`): a
request that is sent again under the same one is answered as it was, and not done again. All that
act may carry a ``"session"``: who sits at the web page that sends it.

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
``actions.stop``    empty or :class:`FromSession`                 :class:`Answer`
``actions.resume``  empty or :class:`FromSession`                 :class:`Answer`
``annotate``        :class:`Annotation`                        :class:`Answer`
``control.take``      :class:`ControlTaken`                      :class:`Answer`
``control.release``     :class:`FromSession`                          :class:`Answer`
==================  =======================================  ==========================
"""

from typing import Annotated

import msgspec

from torchloom_core.errors import MessageError
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.events import KnobDesired
from torchloom_core.wire.limits import (
    MAX_KNOBS,
    MAX_TEXT,
    KnobName,
    Name,
    RackName,
    SessionName,
)
from torchloom_core.wire.messages import KnobSpec, KnobValue, KnobValues

READS = frozenset({"status", "knobs"})
"""Verbs after which all is as it was."""

RequestId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
"""What a sender calls a request, so that it may be sent again: a fresh one for each request."""


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of an answer that has an entry for each worker, what comes after the worker ``after``.

    A message has an end: where an answer says that there is ``more``, the rest is asked for with
    the last worker that it has. Who asks often for what is not told of each worker leaves the
    ``workers`` out.
    """

    after: RackName = ""
    workers: bool = True


class KnobSet(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Set a knob on one worker, or on all that have it when ``worker`` is absent.

    Run-fenced ones may be set together, the others in ``also``, and a ``guard`` be named that
    watches over them. A value that is far from those in use is refused unless the person is
    ``sure``.
    """

    knob: KnobName
    value: KnobValue
    also: KnobValues = {}
    worker: Name | None = None
    guard: Guard | None = None
    sure: bool = False
    id: RequestId = ""
    session: SessionName = ""

    def action(self) -> ChangeKnob | ChangeKnobs:
        """Return what is wanted.

        Raises
        ------
        MessageError
            If several knobs, or a guard, are wanted of one worker, or one knob twice.
        """
        if not self.also and self.guard is None:
            return ChangeKnob(knob=self.knob, value=self.value, worker=self.worker)
        if self.worker is not None:
            raise MessageError(
                "knob.set: several knobs, or a guard, are for all: need no worker, "
                f"was {self.worker!r}"
            )
        if len(self.also) >= MAX_KNOBS:
            raise MessageError(
                f"knob.set: need at most {MAX_KNOBS} knobs, was {len(self.also) + 1}"
            )
        if self.knob in self.also:
            raise MessageError(f"knob.set: need each knob once, was {self.knob!r} twice")
        return ChangeKnobs(values={self.knob: self.value, **self.also}, guard=self.guard)


class KnobUnset(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Want no value of a knob any more, of one worker or, when ``worker`` is absent, of any."""

    knob: KnobName
    worker: Name | None = None
    id: RequestId = ""
    session: SessionName = ""


class FromSession(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What needs no word but who sits at the web page that sends it."""

    session: SessionName = ""


class Annotation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Put a text on record."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
    id: RequestId = ""
    session: SessionName = ""


class ControlTaken(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Take the control lease; see :class:`~torchloom_core.wire.requests.TakeControl`."""

    session: Annotated[SessionName, msgspec.Meta(min_length=1)]
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    force: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request; ``ids`` are the commands it led to."""

    ok: bool
    text: str
    ids: tuple[str, ...] = ()


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the live table; an age is null before the worker's first telemetry.

    ``ending`` is empty while the worker lives. Meant ends are ``drained``, ``finished``,
    ``interrupted`` (Ctrl-C) and ``terminated`` (SIGTERM); ``killed`` (any other signal) and
    ``failed`` (any other status) are faults, and so is ``gone``, an end of which nobody knows how.
    ``crash-looping``: its launcher starts it again, and it ends before it attaches.
    ``silent``: the process may live, but was not heard of for ``weaver.stale_after_s``.
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


class FlightStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One command on its way."""

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
    summary: str = msgspec.field(default="", name="wish")
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
    """A launcher starts ranks again that end before they attach.

    ``failed`` restarts did so since the last rank was attached; ``restart`` is the number of the
    last one, of at most ``most``; ``error`` is what it died of. Where the launcher ``gave_up`` it
    has ended since. ``worker`` is the one whose last life tells of it.
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
        """What there is to say of it, in a sentence."""
        times = "restart" if self.failed == 1 else "restarts"
        end = "; the launcher has given up" if self.gave_up else ""
        return (
            f"crash-looping: {self.failed} {times} on {self.node} ended before they attached, "
            f"the last was {self.restart} of {self.most}: {self.error}{end}"
        )


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The run at one moment; a later :class:`Page` has the next ``workers`` and no lists else.

    Of ``flights`` and ``waiting`` only the first thousand are there, and ``at_risk`` are the twenty
    most of each predictor. ``controller`` is the session that holds the control lease, or empty.
    ``knobs_waiting`` was wanted of an earlier job, and waits until a person sets it.
    ``step_time_s`` is the median step time of all workers that train; None: none reports it.
    ``recording`` says since when and why the trajectory is not written, empty where it is.
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
    trajectory: str = ""
    recording: str = ""
    lighthouse: str = ""
    controller: str = ""
    control_until_ns: int = 0
    step_time_s: float | None = None


class KnobTable(msgspec.Struct, frozen=True, kw_only=True):
    """Every knob of the run: what it is, what it should be, and what it is where.

    A later :class:`Page` has the next ``values`` alone. Of more specs than fit half a message
    those that the fewest workers declare are ``left_out``: how many. ``tried`` are those
    of which a standby tries out what a change would do.
    """

    specs: tuple[KnobSpec, ...] = ()
    desired: tuple[KnobDesired, ...] = ()
    values: dict[str, dict[str, KnobValue]] = {}
    more: bool = False
    left_out: int = 0
    tried: tuple[str, ...] = ()
