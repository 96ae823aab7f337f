"""What a command makes a worker do."""

from typing import ClassVar, Literal

import msgspec

from torchloom_core.wire.landscape import LandscapeRequest
from torchloom_core.wire.limits import (
    Count,
    Int64,
    KnobName,
    KnobValue,
    KnobValues,
    Name,
    RoleName,
    Text,
)
from torchloom_core.wire.links import ProbeAddress, ProbeBytes
from torchloom_core.wire.messages import Groups
from torchloom_core.wire.preview import PreviewRequest


class Operation:
    """What a command makes a worker do: the base of frozen structs with the tag field ``verb``.

    Those below belong to no capability alone; one of a capability's own is in its package.
    """

    __slots__ = ()
    __struct_config__: ClassVar[msgspec.structs.StructConfig]

    takes_s: ClassVar[float] = 0.0
    """How much longer than others it may take, seconds."""


class _Verb(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="verb"):
    """How torchLoom's own are encoded."""


class SetKnob(_Verb, Operation, frozen=True, kw_only=True, tag="set_knob"):
    """Apply ``value`` to the knob at the next step boundary."""

    knob: KnobName
    value: KnobValue


SAVES_TOGETHER = "saves_together"
"""Among a worker's ``actuators``: it saves with all ranks at one step, or not at all."""


class Checkpoint(_Verb, Operation, frozen=True, kw_only=True, tag="checkpoint"):
    """Save a checkpoint at the next step boundary."""


class Drain(_Verb, Operation, frozen=True, kw_only=True, tag="drain"):
    """Leave the quorum at the next step boundary, then end the training loop."""


class Prepare(_Verb, Operation, frozen=True, kw_only=True, tag="prepare"):
    """Create the Manager of a standby that the lighthouse holds back from quorums.

    For a worker with the actuator ``prepare``; afterwards it reports ``prepared``.
    """


class Join(_Verb, Operation, frozen=True, kw_only=True, tag="join"):
    """Join the quorum and train."""


class Pause(_Verb, Operation, frozen=True, kw_only=True, tag="pause"):
    """Wait at the next step boundary until resumed, while `PauseState` confirms the pause."""


class Resume(_Verb, Operation, frozen=True, kw_only=True, tag="resume"):
    """Continue after a pause."""


Depth = Literal["frozen", "parked", "stored"]
"""What a suspension leaves: stopped processes, processes without their state, or nothing."""

SUSPENDED = "suspended"
"""Among a worker's ``actuators``: it waits at a step boundary until it is resumed."""


class Suspend(_Verb, Operation, frozen=True, kw_only=True, tag="suspend"):
    """Wait at the step boundary until resumed, with or without a Weaver.

    A rank that could not go on to ``depth`` refuses it.
    """

    depth: Depth


class Freeze(_Verb, Operation, frozen=True, kw_only=True, tag="freeze"):
    """The sidecar stops its trainer's processes, which wait at a step boundary."""


class Thaw(_Verb, Operation, frozen=True, kw_only=True, tag="thaw"):
    """The sidecar continues the processes that it has stopped; the trainer still waits."""


class Park(_Verb, Operation, frozen=True, kw_only=True, tag="park"):
    """Save in the memory of nodes, and free what the state takes; on all suspended ranks at once.

    The script's functions are called then, to free what they have.
    """

    takes_s: ClassVar[float] = 600.0


class Load(_Verb, Operation, frozen=True, kw_only=True, tag="load"):
    """Load the state of a parked worker again, on all of them at once; they still wait."""

    takes_s: ClassVar[float] = 600.0


class Store(_Verb, Operation, frozen=True, kw_only=True, tag="store"):
    """Save, and wait until it is stored: on all suspended ranks at once."""

    takes_s: ClassVar[float] = 600.0


class Dump(_Verb, Operation, frozen=True, kw_only=True, tag="dump"):
    """Collect stacks and, where there is one, the Flight Recorder's dump."""


class Probe(_Verb, Operation, frozen=True, kw_only=True, tag="probe"):
    """The sidecar sends ``probe_bytes`` to that of ``receiver`` at ``probe_address``.

    The ack has the result.
    """

    receiver: Name
    probe_address: ProbeAddress
    probe_bytes: ProbeBytes


class Survey(
    LandscapeRequest, Operation, frozen=True, kw_only=True, tag_field="verb", tag="survey"
):
    """Map the loss around the run's newest weights, on a standby; 0 points: end the task.

    The result comes in notes of the kind ``landscape``. Any other command to the standby ends it.
    """


class Rehearse(
    PreviewRequest, Operation, frozen=True, kw_only=True, tag_field="verb", tag="rehearse"
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


class Cut(_Verb, Operation, frozen=True, kw_only=True, tag="cut"):
    """Shut down the connections to peers of this quorum, but not those of a later one.

    Done at once, without the training thread, which may be blocked in a collective.
    """

    quorum_id: Count


class Terminate(_Verb, Operation, frozen=True, kw_only=True, tag="terminate"):
    """The sidecar ends its trainer's process by SIGKILL, even if it hangs or is stopped.

    Its launcher may restart it.
    """


class StartRole(_Verb, Operation, frozen=True, kw_only=True, tag="start_role"):
    """The agent of a node starts the program of ``role`` once the present one has ended."""

    role: Name


class SetKnobs(_Verb, Operation, frozen=True, kw_only=True, tag="set_knobs"):
    """Apply several values at once, all of them or none: only in a fenced change."""

    values: KnobValues


class Rewind(_Verb, Operation, frozen=True, kw_only=True, tag="rewind"):
    """Return to the last checkpoint, by the user's function, and skip batches from there.

    Only in a fenced change.
    """

    skip: Count = 0


class FencedChange(_Verb, Operation, frozen=True, kw_only=True, tag="fenced_change"):
    """Apply it at the step that all ranks of the run agree on, or never; see docs/fence.md.

    Attributes
    ----------
    number : int
        The number of the change; a later change supersedes an earlier one that is pending.
    do : Operation
        The operation, the same for all, of a kind that its trainer's part lets be fenced.
    groups : tuple of str
        The groups that apply it; empty: all. The others only take part in the agreement.
    role : str
        The role whose ranks it concerns, where a run has several; empty: that of the groups, or of
        the knobs, or all.
    """

    number: Int64
    do: Operation
    groups: Groups = ()
    role: RoleName = ""


class Withdraw(_Verb, Operation, frozen=True, kw_only=True, tag="withdraw"):
    """Reject the change of this number, and all earlier ones, from now on."""

    number: Int64


class WriteLog(_Verb, Operation, frozen=True, kw_only=True, tag="write_log"):
    """Write ``text`` to the trainer's own log, at once."""

    text: Text


def done_by(operation: Operation, group: str) -> Operation | None:
    """Return the operation that a worker of ``group`` applies; None: it only votes."""
    if not isinstance(operation, FencedChange):
        return operation
    return operation.do if not operation.groups or group in operation.groups else None
