"""The messages between Threadlets and the Weaver.

Telemetry is msgpack; everything else is JSON. Messages are immutable, carry their schema
version, and ignore unknown fields, so that an old reader can read a newer message.
Decisions, which stay inside the Weaver, are in :mod:`torchloom_core.wire.events`.
"""

from typing import Annotated, Literal

import msgspec

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
    Int64,
    KnobName,
    KnobValues,
    LaunchId,
    LongText,
    MetricName,
    Name,
    OptionalId,
    Pid,
    QuorumId,
    RackName,
    RoleName,
    Seconds,
    ShortText,
    Stamp,
    Status,
    Step,
    Text,
    Version,
)
from torchloom_core.wire.links import ProbeAddress
from torchloom_core.wire.placement import Placement

SCHEMA_VERSION = 3
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


class Hello(Placement, frozen=True, kw_only=True, tag="hello"):
    """A worker registers: its id, placement, knobs and actuators.

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

    worker: Name
    incarnation: Count
    labels: Annotated[dict[FieldName, Finite | ShortText], msgspec.Meta(max_length=MAX_FIELDS)] = (
        msgspec.field(default_factory=dict)
    )
    host: ShortText = ""
    pid: Pid = 0
    state: WorkerState = "training"
    knobs: KnobSpecs = ()
    values: KnobValues = msgspec.field(default_factory=dict)
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


def version_fault(version: int) -> str:
    """Return the error for a peer of another wire version, or an empty string."""
    if version == SCHEMA_VERSION:
        return ""
    return (
        f"need wire version {SCHEMA_VERSION}, was {version}: install the same version of torchloom "
        "for the Weaver and for the trainers"
    )


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
    role : str
        The role whose pause it is: workers of other roles ignore it; empty: of all.
    """

    run: Name
    epoch: Count
    verdict: OptionalId = ""
    over: OptionalId = ""
    role: RoleName = ""
    v: Version = SCHEMA_VERSION


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="join_request"):
    """A worker with the run's join credentials requests its own.

    ``public_key`` is a NATS user nkey (``U...``); its seed never leaves the worker. ``group`` and
    ``node`` are as in its :class:`~torchloom_core.wire.placement.Placement`. It waits for an answer
    for ``within_s``, and then repeats the request; 0: an unknown time.
    """

    run: Name
    worker: Name
    incarnation: Count
    public_key: ShortText
    group: RackName = ""
    node: RackName = ""
    within_s: Seconds = 0.0
    v: Version = SCHEMA_VERSION


class JoinReply(msgspec.Struct, frozen=True, kw_only=True, tag="join_reply"):
    """The worker's own user JWT, or the error, or after how many seconds to repeat the request.

    ``unwanted``: the name is free, but the node is cordoned, so that a restarted process should
    end. ``taken``: another process has the name. ``ts_ns``: the Weaver's time, in the answer to an
    empty request, which asks for version and time alone.
    """

    jwt: FileText = ""
    error: Text = ""
    unwanted: bool = False
    taken: bool = False
    wait_s: Seconds = 0.0
    ts_ns: Stamp = 0
    v: Version = SCHEMA_VERSION


class JoinFile(msgspec.Struct, frozen=True, kw_only=True):
    """``join.json``: what a trainer needs to find its Weaver, which writes the file.

    ``creds`` is the text of a NATS credentials file, empty for a server without credentials. With
    ``enrol`` they only allow a :class:`JoinRequest` for the worker's own. ``ca`` is the text of the
    CA's certificates with which a trainer verifies the server; ``certificate`` and ``key`` are
    paths on the trainer's host, where the server asks for a client's certificate.
    """

    url: Text
    run: Name
    creds: Creds = ""
    enrol: bool = True
    ca: LongText = ""
    certificate: Text = ""
    key: Text = ""


WorkerEvent = Hello | Exit | Note
