"""What travels between Threadlets and the Weaver.

Telemetry is msgpack; everything else is JSON. Messages are immutable, carry their schema
version, and ignore fields they do not know, so an old reader survives a newer writer.
Decisions, which stay inside the Weaver, are in :mod:`torchloom_core.wire.events`.
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.landscape import Look
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
from torchloom_core.wire.preview import Trial

SCHEMA_VERSION = 2
"""Of all messages between a Weaver and Threadlets, which must be of the same one."""

CALLED_AT_ONCE = 1000
"""How many workers a roll call names at most."""

LOG = "log"
"""The kind of note that is a line of a trainer's own log: ``level``, ``logger`` and ``text``."""

FieldValue = bool | Int64 | Finite | LongText | None
"""What a note says under one name."""

WorkerState = Literal["standby", "joining", "training", "paused", "draining", "left"]
"""Where a worker is in its life, as the trainer itself says."""


class KnobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run-time parameter that a worker lets itself be told.

    Attributes
    ----------
    name : str
        By which it is changed.
    kind : str
        ``float``, ``int``, ``bool``, ``choice`` or ``order``: names of replica groups with commas
        between, each at most once, or nothing.
    fence : str
        How a change must land: ``worker`` knobs are applied by each worker alone, ``run`` knobs
        by all ranks at the same step or by none.
    low, high : float, optional
        What a number may be at the least and at the most.
    choices : tuple of str
        What a ``choice`` may be.
    used_up : bool
        Whether a value is used up by training: it is then not wanted again of a run that restarts.
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
        Start of the trainer process, milliseconds since the Unix epoch. Another life of the
        same worker has another one; a larger one, unless its clock went back.
    seq : int
        Number of the batch within this incarnation; a gap means batches were lost.
    step : int
        The last step the trainer finished, -1 before the first.
    progress_age_s : float
        Seconds since the trainer last finished a step or entered its present state.
    dropped : int
        Samples this incarnation had to drop because nobody took them in time.
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
    """A worker registers: what it is, where it sits, which knobs and actuators it has.

    Sent when the trainer attaches, when the Weaver calls the roll, after a reconnect, and when
    what it says has changed.

    Attributes
    ----------
    replica_id : str
        How torchft's lighthouse calls this life of its group; empty before the first quorum.
    quorum_id : int
        The quorum that the group was last in, -1 before the first.
    probe_address : ProbeAddress, optional
        Where its sidecar takes probes; None of one that takes none.
    labels : dict of str to (str or float)
        What does not change of where it sits: model, size.
    tries : tuple of str
        Knobs of which a standby tries out what a change would do.
    epoch : int
        The highest epoch of a Weaver that this life has heard of; 0 before the first.
    launch : str
        The start of the job that this process belongs to: the same for all that one launcher
        starts, and for what that launcher starts again.
    resumes : bool, optional
        Whether a launch that is not known goes on with an earlier one's work, since its scheduler
        has requeued it, or a checkpoint was loaded; None until the first step tells.
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

    ``status`` is the exit code, or minus the signal number, or None when whoever started the
    trainer reaped it before the sidecar could look. ``expected`` is true of an end that was meant:
    after a drain or a clean close, of a loop that is over, and by SIGTERM or SIGINT.
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
    name of the sender's own; ``fields`` holds what belongs to it.

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


class SetKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="set_knob"):
    """Apply ``value`` to the knob at the next step boundary."""

    knob: KnobName
    value: KnobValue


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="checkpoint"):
    """Save a checkpoint at the next step boundary."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="drain"):
    """Leave the quorum at the next step boundary, then end the training loop."""


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="prepare"):
    """Stand by with the Manager made: the lighthouse holds the replica group back.

    For a worker that says ``prepare`` among its actuators; afterwards it says ``prepared``.
    """


class Join(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="join"):
    """Stop standing by and join the quorum."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="pause"):
    """Wait at the next step boundary until resumed, as long as the Weaver holds it (`PauseState`)."""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="resume"):
    """Go on after a pause."""


class Dump(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="dump"):
    """Collect stacks and, where there is one, the Flight Recorder's dump."""


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="probe"):
    """The sidecar sends ``probe_bytes`` to that of ``receiver`` at ``probe_address``.

    What was measured comes back in the ack.
    """

    receiver: Name
    probe_address: ProbeAddress
    probe_bytes: ProbeBytes


class Survey(Look, frozen=True, kw_only=True, omit_defaults=True, tag_field="verb", tag="survey"):
    """Look at the loss around the run's newest weights, on a standby; of 0 points: leave off.

    What is found comes in notes of the kind ``landscape``. Whatever else is asked of the standby
    ends it.
    """


class Rehearse(
    Trial, frozen=True, kw_only=True, omit_defaults=True, tag_field="verb", tag="rehearse"
):
    """Train on with a change and without it, on a standby; of 0 steps: leave off.

    What comes of it is told in notes of the kind ``preview``. Whatever else is asked of the
    standby ends it.

    Attributes
    ----------
    now : dict
        What is wanted of the run's knobs already: the control has it as well.
    """

    now: KnobValues = msgspec.field(default_factory=dict)


StandbyTask = Survey | Rehearse
"""What a standby does alone while it waits."""


class Cut(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="cut"):
    """Shut down the connections to peers that were made for this quorum; none of a later one.

    Done at once, without waiting for the training thread: it may be what waits for a peer.
    """

    quorum_id: Count


class Terminate(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="terminate"):
    """The sidecar ends its trainer's process by SIGKILL, be it stuck or stopped.

    Whoever started the process may start it again.
    """


class SetKnobs(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="set_knobs"):
    """Apply several values at once: all of them or none."""

    values: KnobValues


class Rewind(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="verb", tag="rewind"
):
    """Go back to the last checkpoint, by the user's function, and skip batches from there."""

    skip: Count = 0


class FencedChange(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="verb",
    tag="fenced_change",
):
    """Do it at the step that all ranks of the run agree on, or never; docs/fence.md says how.

    Attributes
    ----------
    number : int
        Of the change; a later one takes the place of an earlier one that is still to be made.
    do : Operation
        The same for all.
    groups : tuple of str
        Who does it; empty: all. The others agree, and do nothing.
    """

    number: Int64
    do: SetKnobs | Pause | Drain | Rewind
    groups: Groups = ()


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="withdraw"):
    """Never agree any more to the change of this number, nor to an earlier one."""

    number: Int64


class WriteLog(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="tell"):
    """Write ``text`` to the trainer's own log, at once."""

    text: Text


def version_fault(version: int) -> str:
    """Return why a Threadlet and a Weaver of another version cannot work together, or nothing."""
    if version == SCHEMA_VERSION:
        return ""
    return (
        f"need wire version {SCHEMA_VERSION}, was {version}: install the same version of torchloom "
        "for the Weaver and for the trainers"
    )


def done_by(operation: "Operation", group: str) -> "Operation | SetKnobs | Rewind | None":
    """Return what a worker of ``group`` does of an operation; None: it only agrees."""
    if not isinstance(operation, FencedChange):
        return operation
    return operation.do if not operation.groups or group in operation.groups else None


Operation = (
    SetKnob
    | Checkpoint
    | Drain
    | Prepare
    | Join
    | Pause
    | Resume
    | Dump
    | Probe
    | Survey
    | Rehearse
    | Cut
    | Terminate
    | FencedChange
    | Withdraw
    | WriteLog
)


RECONCILE = "reconcile"
"""The cause of commands that tell a worker what is wanted since before."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command", omit_defaults=True):
    """One operation for one life of one worker, to be done exactly once.

    A Threadlet rejects it if ``incarnation`` is not its own, if it has seen a higher
    ``epoch``, or if the time is past ``deadline_ns``; a repeated ``id`` is answered with what
    was answered before.
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
boundary; the rest end the command's life."""

FINAL_STATUSES: frozenset[str] = frozenset({"applied", "rejected", "failed", "expired"})


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """What became of a command, as the Threadlet saw it.

    ``epoch`` is the epoch of the copy of the command that is answered: a restarted Weaver
    sends what is in flight again under its own epoch. ``measured`` is what a probe found.
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
    """The Weaver under ``epoch`` asks workers to say hello: all of them unless it names some."""

    run: Name
    epoch: Count
    workers: Annotated[tuple[Name, ...], msgspec.Meta(max_length=CALLED_AT_ONCE)] = ()
    v: Version = SCHEMA_VERSION


class PauseState(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
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
    verdict: OptionalId = msgspec.field(default="", name="hold")
    over: OptionalId = ""
    v: Version = SCHEMA_VERSION


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="join_request"):
    """A worker that holds the run's join credentials asks for its own.

    ``public_key`` is a NATS user nkey (``U...``); its seed never leaves the worker. ``node`` is
    where it sits.
    """

    run: Name
    worker: Name
    incarnation: Count
    public_key: ShortText
    node: RackName = ""
    v: Version = SCHEMA_VERSION


class JoinReply(msgspec.Struct, frozen=True, kw_only=True, tag="join_reply"):
    """The worker's own user JWT, or why it gets none.

    ``unwanted`` says that the name is free, but nobody is wanted on the worker's node: a process
    that was started again had better end. ``taken`` says that another process has the name.
    """

    jwt: FileText = ""
    error: Text = ""
    unwanted: bool = False
    taken: bool = False
    v: Version = SCHEMA_VERSION


class JoinFile(msgspec.Struct, frozen=True, kw_only=True):
    """``join.json``: all that a trainer needs to find its Weaver, written by the Weaver.

    ``creds`` is the text of a NATS credentials file, empty for a server without them. With
    ``enrol`` the credentials only allow to ask for the worker's own (:class:`JoinRequest`).
    """

    url: Text
    run: Name
    creds: Creds = ""
    enrol: bool = True


WorkerEvent = Hello | Exit | Note
