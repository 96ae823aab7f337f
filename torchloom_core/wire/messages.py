"""The messages between Threadlets and the Weaver.

Telemetry is msgpack; everything else is JSON. Messages are immutable, carry their schema
version, and ignore unknown fields, so that an old reader can read a newer message.
Decisions, which stay inside the Weaver, are in :mod:`torchloom_core.wire.events`.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from torchloom_core.wire.landscape import LandscapeRequest
from torchloom_core.wire.limits import (
    MAX_CHOICES,
    MAX_FIELDS,
    MAX_KNOBS,
    MAX_METRICS,
    MAX_WORKERS,
    Count,
    Creds,
    FieldName,
    FileText,
    Finite,
    Id,
    Int64,
    KnobName,
    LaunchId,
    LongText,
    MetricName,
    Name,
    OptionalId,
    Pid,
    QuorumId,
    RackName,
    Rank,
    Seconds,
    ShortText,
    Stamp,
    Status,
    Step,
    Text,
    Version,
)
from torchloom_core.wire.limits import KnobValue as KnobValue
from torchloom_core.wire.limits import KnobValues as KnobValues
from torchloom_core.wire.links import Measured, ProbeAddress, ProbeBytes
from torchloom_core.wire.preview import PreviewRequest

SCHEMA_VERSION = 2
"""The version of all messages; a Weaver and its Threadlets must have the same one."""

CALLED_AT_ONCE = 1000
"""How many workers a roll call names at most."""

LOG = "log"
"""The kind of note that is a line of a trainer's own log: ``level``, ``logger`` and ``text``."""

FieldValue = bool | Int64 | Finite | LongText | None
"""The value of one field of a note."""

WorkerState = Literal["standby", "joining", "training", "paused", "draining", "left"]
"""The state of a worker, as its trainer reports it."""


class KnobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run-time parameter that can be changed on a worker.

    Attributes
    ----------
    name : str
        The name by which it is changed.
    kind : str
        ``float``, ``int``, ``bool``, ``choice`` or ``order``: names of replica groups separated by
        commas, each at most once, or empty.
    fence : str
        ``worker``: each worker applies a change by itself; ``run``: all ranks apply it at the same
        step, or none does.
    low, high : float, optional
        The smallest and largest value of a number.
    choices : tuple of str
        The values of a ``choice``.
    used_up : bool
        Whether a value takes effect once, so that it is not set again after a restart.
    unit, doc : str
        For people.

    Examples
    --------
    >>> from torchloom_core.plugin import KnobSpec
    >>> from torchloom_core.testing import view_of
    >>> spec = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)
    >>> view = view_of(workers=1, knob_specs=[spec], knob_values=[{"lr": 0.1}])
    >>> view.knob_specs["lr"].high, view.knob("lr")
    (1.0, [0.1])
    """

    name: KnobName
    kind: Literal["float", "int", "bool", "choice", "order"]
    fence: Literal["worker", "run"] = "worker"
    low: Finite | None = None
    high: Finite | None = None
    choices: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_CHOICES)] = ()
    used_up: bool = False
    unit: ShortText = ""
    doc: Text = ""


KnobSpecs = Annotated[tuple[KnobSpec, ...], msgspec.Meta(max_length=MAX_KNOBS)]
Groups = Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_WORKERS)]


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One batch of one worker's samples, and its heartbeat.

    Sent at least once per heartbeat interval, with ``metrics`` empty if there is nothing to
    report. ``step`` and ``progress_age_s`` come from the training thread alone, so a trainer
    that hangs is never reported as alive.

    Attributes
    ----------
    incarnation : int
        Start of the trainer process, milliseconds since the Unix epoch; each process of a worker
        has its own, a larger one unless the clock went back.
    seq : int
        Number of the batch within this incarnation; a gap means batches were lost.
    step : int
        The last step the trainer finished, -1 before the first.
    progress_age_s : float
        Seconds since the trainer last finished a step or entered its present state.
    dropped : int
        Samples that this incarnation dropped because they were not read in time.
    metrics : tuple of str
        Names, units in the name (``gpu_temp_celsius``).
    ts_ns : bytes
        ``(samples,)`` little-endian int64, Unix epoch, UTC.
    values : bytes
        ``(samples, metrics)`` little-endian float64, NaN where a metric is missing. The last
        sample is the newest.
    """

    run: Name
    worker: Name
    incarnation: Count
    seq: Count
    state: WorkerState
    step: Step
    progress_age_s: Seconds
    dropped: Count = 0
    metrics: Annotated[tuple[MetricName, ...], msgspec.Meta(max_length=MAX_METRICS)] = ()
    ts_ns: bytes = b""
    values: bytes = b""
    v: Version = SCHEMA_VERSION


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A worker registers: its names, node, knobs and actuators.

    Sent when the trainer attaches, at a roll call, after a reconnect, and when a field changes.

    Attributes
    ----------
    replica_id : str
        torchft's id of this incarnation of the group; empty before the first quorum.
    quorum_id : int
        The last quorum of the group, -1 before the first.
    probe_address : ProbeAddress, optional
        Where its sidecar accepts probes; None if it accepts none.
    labels : dict of str to (str or float)
        Fixed properties of the worker or its node, such as the GPU model.
    tries : tuple of str
        Knobs whose change a standby can preview.
    epoch : int
        The highest epoch of a Weaver that this incarnation has seen; 0 before the first.
    launch : str
        The id of the start of the job: the same for all processes that one launcher starts or
        restarts.
    resumes : bool, optional
        Whether the launch continues the work of an earlier one: its scheduler requeued it, or it
        loaded a checkpoint. None until the first step.
    """

    run: Name
    worker: Name
    incarnation: Count
    group: Name
    rank: Rank
    node: Name
    rack: RackName = ""
    labels: Annotated[dict[FieldName, Finite | ShortText], msgspec.Meta(max_length=MAX_FIELDS)] = {}
    host: ShortText = ""
    pid: Pid = 0
    state: WorkerState = "training"
    knobs: KnobSpecs = ()
    values: KnobValues = {}
    actuators: Annotated[tuple[FieldName, ...], msgspec.Meta(max_length=MAX_FIELDS)] = ()
    framework: ShortText = ""
    replica_id: ShortText = ""
    quorum_id: QuorumId = -1
    probe_address: ProbeAddress | None = None
    tries: Annotated[tuple[KnobName, ...], msgspec.Meta(max_length=MAX_KNOBS)] = ()
    epoch: Count = 0
    launch: LaunchId = ""
    resumes: bool | None = None
    ts_ns: Stamp = 0
    v: Version = SCHEMA_VERSION


class Exit(msgspec.Struct, frozen=True, kw_only=True, tag="exit"):
    """The sidecar saw its trainer's process end.

    ``status`` is the exit code, or minus the signal number, or None if the parent process reaped
    the trainer before the sidecar could. ``expected`` is true for an intended end: after a drain
    or a clean close, at the end of the loop, and by SIGTERM or SIGINT.
    """

    run: Name
    worker: Name
    incarnation: Count
    status: Status | None
    expected: bool
    step: Step = -1
    error: Text = ""
    ts_ns: Stamp = 0
    v: Version = SCHEMA_VERSION


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Something happened at a worker: a quorum, a failed commit, a hang, a dump, an XID.

    ``kind`` is one of ``quorum``, ``commit``, ``error``, ``hang``, ``dump``, ``fault`` or a
    name of the sender's own; ``fields`` has its data.

    Examples
    --------
    >>> from torchloom_core.plugin import Note
    >>> saved = Note(run="r", worker="g0-0", incarnation=1, kind="saved", fields={"took_s": 3.5})
    >>> saved.kind, saved.fields["took_s"]
    ('saved', 3.5)
    """

    run: Name
    worker: Name
    incarnation: Count
    kind: FieldName
    step: Step = -1
    fields: Annotated[dict[FieldName, FieldValue], msgspec.Meta(max_length=MAX_FIELDS)] = {}
    ts_ns: Stamp = 0
    v: Version = SCHEMA_VERSION


class Operation:
    """What a command makes a worker do: the base of frozen structs with the tag field ``verb``.

    Those below belong to no capability alone; one of a capability's own is in its package.
    """

    __slots__ = ()
    __struct_config__: ClassVar[msgspec.structs.StructConfig]


class SetKnob(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="set_knob"
):
    """Apply ``value`` to the knob at the next step boundary."""

    knob: KnobName
    value: KnobValue


class Checkpoint(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="checkpoint"
):
    """Save a checkpoint at the next step boundary."""


class Drain(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="drain"):
    """Leave the quorum at the next step boundary, then end the training loop."""


class Prepare(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="prepare"
):
    """Create the Manager of a standby that the lighthouse holds back from quorums.

    For a worker with the actuator ``prepare``; afterwards it reports ``prepared``.
    """


class Join(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="join"):
    """Join the quorum and train."""


class Pause(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="pause"):
    """Wait at the next step boundary until resumed, while `PauseState` confirms the pause."""


class Resume(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="resume"):
    """Continue after a pause."""


class Dump(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="dump"):
    """Collect stacks and, where there is one, the Flight Recorder's dump."""


class Probe(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="probe"):
    """The sidecar sends ``probe_bytes`` to that of ``receiver`` at ``probe_address``.

    The ack has the result.
    """

    receiver: Name
    probe_address: ProbeAddress
    probe_bytes: ProbeBytes


class Survey(
    LandscapeRequest,
    Operation,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="verb",
    tag="survey",
):
    """Map the loss around the run's newest weights, on a standby; 0 points: end the task.

    The result comes in notes of the kind ``landscape``. Any other command to the standby ends it.
    """


class Rehearse(
    PreviewRequest,
    Operation,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="verb",
    tag="rehearse",
):
    """Train with a change and without it, on a standby; 0 steps: end the task.

    The result comes in notes of the kind ``preview``. Any other command to the standby ends it.

    Attributes
    ----------
    now : dict
        The desired values of the run, which the control has as well.
    """

    now: KnobValues = msgspec.field(default_factory=dict)


StandbyTask = Survey | Rehearse
"""The tasks that a standby does while it waits."""


class Cut(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="cut"):
    """Shut down the connections to peers of this quorum, but not those of a later one.

    Done at once, without the training thread, which may be blocked in a collective.
    """

    quorum_id: Count


class Terminate(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="terminate"
):
    """The sidecar ends its trainer's process by SIGKILL, even if it hangs or is stopped.

    Its launcher may restart it.
    """


class SetKnobs(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="set_knobs"):
    """Apply several values at once: all of them or none."""

    values: KnobValues


class Rewind(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="verb", tag="rewind"
):
    """Return to the last checkpoint, by the user's function, and skip batches from there."""

    skip: Count = 0


class FencedChange(
    msgspec.Struct,
    Operation,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="verb",
    tag="fenced_change",
):
    """Apply it at the step that all ranks of the run agree on, or never; see docs/fence.md.

    Attributes
    ----------
    number : int
        The number of the change; a later change supersedes an earlier one that is pending.
    do : Operation
        The operation, the same for all.
    groups : tuple of str
        The groups that apply it; empty: all. The others only take part in the agreement.
    """

    number: Int64
    do: SetKnobs | Pause | Drain | Rewind
    groups: Groups = ()


class Withdraw(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="withdraw"
):
    """Reject the change of this number, and all earlier ones, from now on."""

    number: Int64


class WriteLog(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="write_log"
):
    """Write ``text`` to the trainer's own log, at once."""

    text: Text


def version_fault(version: int) -> str:
    """Return the error for a peer of another wire version, or an empty string."""
    if version == SCHEMA_VERSION:
        return ""
    return (
        f"need wire version {SCHEMA_VERSION}, was {version}: install the same version of torchloom "
        "for the Weaver and for the trainers"
    )


def done_by(operation: Operation, group: str) -> "Operation | SetKnobs | Rewind | None":
    """Return the operation that a worker of ``group`` applies; None: it only votes."""
    if not isinstance(operation, FencedChange):
        return operation
    return operation.do if not operation.groups or group in operation.groups else None


RECONCILE = "reconcile"
"""The cause of commands that set values that were desired before the worker joined."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command", omit_defaults=True):
    """One operation for one incarnation of one worker, to be done exactly once.

    A Threadlet rejects it if ``incarnation`` is not its own, if it has seen a higher
    ``epoch``, or after ``deadline_ns``; a repeated ``id`` gets the same answer again.
    """

    id: Id
    run: Name
    worker: Name
    incarnation: Count
    epoch: Count
    issued_ns: Stamp
    deadline_ns: Stamp
    do: Operation
    cause: ShortText = ""
    v: Version = SCHEMA_VERSION


AckStatus = Literal["delivered", "accepted", "applied", "rejected", "failed", "expired"]
"""``delivered``: the sidecar has it; ``accepted``: the trainer will do it at its next step
boundary; the others are final."""

FINAL_STATUSES: frozenset[str] = frozenset({"applied", "rejected", "failed", "expired"})


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """The status of a command, reported by its Threadlet.

    ``epoch`` is that of the copy of the command: a restarted Weaver sends commands in flight
    again under its own epoch. ``measured`` is the result of a probe.
    """

    command: Id
    run: Name
    worker: Name
    incarnation: Count
    epoch: Count
    status: AckStatus
    step: Step = -1
    detail: Text = ""
    measured: Measured | None = None
    ts_ns: Stamp = 0
    v: Version = SCHEMA_VERSION


class RollCall(msgspec.Struct, frozen=True, kw_only=True, tag="roll_call"):
    """The Weaver of ``epoch`` asks workers for a hello: all of them, or those it names."""

    run: Name
    epoch: Count
    workers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=CALLED_AT_ONCE)] = ()
    v: Version = SCHEMA_VERSION


class PauseState(msgspec.Struct, frozen=True, kw_only=True, tag="pause_state"):
    """Which pause is in force; a worker whose pause is not confirmed resumes by itself.

    Sent about once a second while a pause is in force, and when that changes. A worker ignores
    it if it has seen a higher ``epoch``.

    Attributes
    ----------
    verdict : str
        The verdict whose pause is in force; empty: none, and paused workers resume.
    over : str
        The verdict of the pause that has just ended: a worker that has not paused yet must not.
    """

    run: Name
    epoch: Count
    verdict: OptionalId = ""
    over: OptionalId = ""
    v: Version = SCHEMA_VERSION


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="join_request"):
    """A worker with the run's join credentials requests its own.

    ``public_key`` is a NATS user nkey (``U...``); its seed never leaves the worker. ``node`` is
    the worker's node.
    """

    run: Name
    worker: Name
    incarnation: Count
    public_key: ShortText
    node: RackName = ""
    v: Version = SCHEMA_VERSION


class JoinReply(msgspec.Struct, frozen=True, kw_only=True, tag="join_reply"):
    """The worker's own user JWT, or the error.

    ``unwanted``: the name is free, but the node is cordoned, so that a restarted process should
    end. ``taken``: another process has the name.
    """

    jwt: FileText = ""
    error: Text = ""
    unwanted: bool = False
    taken: bool = False
    v: Version = SCHEMA_VERSION


class JoinFile(msgspec.Struct, frozen=True, kw_only=True):
    """``join.json``: what a trainer needs to find its Weaver, which writes the file.

    ``creds`` is the text of a NATS credentials file, empty for a server without credentials. With
    ``enrol`` they only allow a :class:`JoinRequest` for the worker's own.
    """

    url: Text
    run: Name
    creds: Creds = ""
    enrol: bool = True


WorkerEvent = Hello | Exit | Note
