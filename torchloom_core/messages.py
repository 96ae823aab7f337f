"""What travels between Threadlets and the Weaver.

Telemetry is msgpack; everything else is JSON. Messages are immutable, carry their schema
version, and ignore fields they do not know, so an old reader survives a newer writer.
Decisions, which stay inside the Weaver, are in :mod:`torchloom_core.decisions`.
"""

from typing import Annotated, Literal

import msgspec

SCHEMA_VERSION = 1

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number that fits the columns in which the fleet and the trajectory keep it."""

KnobValue = bool | Int64 | float | str

WorkerState = Literal["standby", "joining", "training", "paused", "draining", "left"]
"""Where a worker is in its life, as the trainer itself says."""


class KnobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run-time parameter that a worker lets itself be told.

    ``fence`` says how a change must land: ``worker`` knobs are applied by each worker alone,
    ``run`` knobs by all ranks at the same step or by none.
    """

    name: str
    kind: Literal["float", "int", "bool", "choice"]
    fence: Literal["worker", "run"] = "worker"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    doc: str = ""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of one worker's samples, and its heartbeat.

    Sent at least once per heartbeat interval, with ``metrics`` empty if there is nothing to
    report. ``step`` and ``progress_age_s`` come from the training thread alone, so a trainer
    that hangs is never reported as alive.

    Attributes
    ----------
    incarnation : int
        Start of the trainer process, milliseconds since the Unix epoch. A later life of the
        same worker has a larger one.
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

    run: str
    worker: str
    incarnation: Int64
    seq: Int64
    state: WorkerState
    step: Int64
    progress_age_s: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
    dropped: Int64 = 0
    metrics: tuple[str, ...] = ()
    ts_ns: bytes = b""
    values: bytes = b""
    v: int = SCHEMA_VERSION


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A worker registers: what it is, where it sits, which knobs and actuators it has.

    Sent when the trainer attaches, when the Weaver calls the roll, and after a reconnect.
    """

    run: str
    worker: str
    incarnation: Int64
    group: str
    rank: Int64
    node: str
    rack: str = ""
    host: str = ""
    pid: Int64 = 0
    state: WorkerState = "training"
    knobs: tuple[KnobSpec, ...] = ()
    values: dict[str, KnobValue] = {}
    actuators: tuple[str, ...] = ()
    framework: str = ""
    ts_ns: Int64 = 0
    v: int = SCHEMA_VERSION


class Exit(msgspec.Struct, frozen=True, kw_only=True, tag="exit"):
    """The sidecar saw its trainer's process end.

    ``status`` is the exit code, or minus the signal number, or None when whoever started the
    trainer reaped it before the sidecar could look. ``expected`` is true after a drain or a
    clean close.
    """

    run: str
    worker: str
    incarnation: Int64
    status: Int64 | None
    expected: bool
    step: Int64 = -1
    error: str = ""
    ts_ns: Int64 = 0
    v: int = SCHEMA_VERSION


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Something happened at a worker: a quorum, a failed commit, a hang, a dump, an XID.

    ``kind`` is one of ``quorum``, ``commit``, ``error``, ``hang``, ``dump``, ``fault`` or a
    name of the sender's own; ``fields`` holds what belongs to it.
    """

    run: str
    worker: str
    incarnation: Int64
    kind: str
    step: Int64 = -1
    fields: dict[str, KnobValue | None] = {}
    ts_ns: Int64 = 0
    v: int = SCHEMA_VERSION


class SetKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="set_knob"):
    """Apply ``value`` to the knob at the next step boundary."""

    knob: str
    value: KnobValue


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="checkpoint"):
    """Save a checkpoint at the next step boundary."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="drain"):
    """Leave the quorum at the next step boundary, then end the training loop."""


class Join(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="join"):
    """Stop standing by and join the quorum."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="pause"):
    """Wait at the next step boundary until resumed."""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="resume"):
    """Go on after a pause."""


class Dump(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag="dump"):
    """Collect stacks and, where there is one, the Flight Recorder's dump."""


Deed = SetKnob | Checkpoint | Drain | Join | Pause | Resume | Dump


class Command(msgspec.Struct, frozen=True, kw_only=True, tag="command", omit_defaults=True):
    """One deed for one life of one worker, to be done exactly once.

    A Threadlet rejects it if ``incarnation`` is not its own, if it has seen a higher
    ``epoch``, or if the time is past ``deadline_ns``; a repeated ``id`` is answered with what
    was answered before.
    """

    id: str
    run: str
    worker: str
    incarnation: Int64
    epoch: Int64
    issued_ns: Int64
    deadline_ns: Int64
    do: Deed
    cause: str = ""
    v: int = SCHEMA_VERSION


AckStatus = Literal["delivered", "accepted", "applied", "rejected", "failed", "expired"]
"""``delivered``: the sidecar has it; ``accepted``: the trainer will do it at its next step
boundary; the rest end the command's life."""

FINAL_STATUSES: frozenset[str] = frozenset({"applied", "rejected", "failed", "expired"})


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """What became of a command, as the Threadlet saw it.

    ``epoch`` is the epoch of the copy of the command that is answered: a restarted Weaver
    sends what is in flight again under its own epoch.
    """

    command: str
    run: str
    worker: str
    incarnation: Int64
    epoch: Int64
    status: AckStatus
    step: Int64 = -1
    detail: str = ""
    ts_ns: Int64 = 0
    v: int = SCHEMA_VERSION


class RollCall(msgspec.Struct, frozen=True, kw_only=True, tag="roll_call"):
    """The Weaver (re)started under ``epoch`` and asks every worker to say hello."""

    run: str
    epoch: Int64
    v: int = SCHEMA_VERSION


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="join_request"):
    """A worker that holds the run's join credentials asks for its own.

    ``public_key`` is a NATS user nkey (``U...``); its seed never leaves the worker.
    """

    run: str
    worker: str
    incarnation: Int64
    public_key: str
    v: int = SCHEMA_VERSION


class JoinReply(msgspec.Struct, frozen=True, kw_only=True, tag="join_reply"):
    """The worker's own user JWT, or why it gets none."""

    jwt: str = ""
    error: str = ""
    v: int = SCHEMA_VERSION


class JoinFile(msgspec.Struct, frozen=True, kw_only=True):
    """``join.json``: all that a trainer needs to find its Weaver, written by the Weaver.

    ``creds`` is the text of a NATS credentials file, empty for a server without them. With
    ``enrol`` the credentials only allow to ask for the worker's own (:class:`JoinRequest`).
    """

    url: str
    run: str
    creds: str = ""
    enrol: bool = True


WorkerEvent = Hello | Exit | Note
