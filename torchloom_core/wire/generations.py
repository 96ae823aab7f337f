"""The messages between the workers of a program and the rendezvous that forms its generations.

A *generation* is the time in which one assignment holds: from the moment at which the rendezvous
has sent it until one of its workers ends, or all have agreed, with the commit of a step, to stop
for the next one. One JSON message a line, over one TCP connection a worker: the end of the
connection is the worker's end.

A step is *reduced* on a worker once its gradients are those of the whole batch, and *committed*
once all workers have voted for it after that. A worker keeps the reduced gradients until the vote
on the next step is over. So if one worker has committed a step, all others can: none is lost.
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.assignment import MAX_PARTS, Assignment, Copy, Part
from torchloom_core.wire.limits import Count, Name, RackName, ShortText, Text
from torchloom_core.wire.planned_changes import Answered, Offer

MAX_LINE = 4_000_000
"""Bytes of a message, at most."""

Step = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
"""The number of a step; -1 before the first."""

Measured = Annotated[
    tuple[Annotated[float, msgspec.Meta(ge=0, le=1e12)], ...], msgspec.Meta(max_length=MAX_PARTS)
]

LayerSeconds = Annotated[
    tuple[Annotated[float, msgspec.Meta(ge=0, le=1e6)], ...], msgspec.Meta(max_length=MAX_PARTS)
]

Parts = Annotated[tuple[Part, ...], msgspec.Meta(max_length=MAX_PARTS)]


class ExpertLayer(msgspec.Struct, frozen=True, array_like=True):
    """A layer with experts, whose numbers follow on those of the layer with experts before it.

    Attributes
    ----------
    experts : int
        How many it has.
    expert_bytes : int
        Weights and optimizer state of one.
    copies : int
        How many workers hold each.
    per_worker : int
        How many of them a worker holds at most; 0: no more than it has to.
    """

    experts: Part
    expert_bytes: Count = 0
    copies: Part = 1
    per_worker: Part = 0


class Mirror(msgspec.Struct, frozen=True, array_like=True):
    """An expert whose state after a step is in the memory of a worker that does not hold it."""

    expert: Part
    step: Step


class ExpertState(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has measured of the program's experts, and which it keeps for others.

    Attributes
    ----------
    tokens : tuple of float
        Of each expert in a step, in the mean of the last steps, ``(experts,)``.
    seconds : float
        Of forward and backward of the worker's own experts in a step.
    mirrors : tuple of Mirror
        Those in its memory.
    """

    tokens: Measured = ()
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    mirrors: Annotated[tuple[Mirror, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()


NO_EXPERTS = ExpertState()


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """A worker's first message on a connection.

    Attributes
    ----------
    incarnation : int
        Start of its process, milliseconds since the Unix epoch.
    store : str
        Address of the key-value store that it offers to a generation, ``host:port``.
    generation : int
        The generation that it is in, if it connects again; 0 for a new process.
    layers : int
        How many the program has: the same for all workers.
    expert_layers : tuple of ExpertLayer
        Those of its layers that have experts.
    replicas, micro_batches : int
        How many replicas the program has, and micro-batches of each and step.
    committed : int
        The step of the checkpoint that a new process has loaded.
    layer_bytes : tuple of int
        Bytes of each layer's weights and optimizer state, ``(layers,)``.
    node : str
        The machine that it is on; empty if unknown.
    """

    worker: Name
    incarnation: Count
    store: ShortText
    generation: Count = 0
    layers: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    expert_layers: Annotated[tuple[ExpertLayer, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    replicas: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)] = 1
    committed: Step = -1
    layer_bytes: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    node: RackName = ""


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """A worker cannot finish a step of this generation: a peer's connection has failed."""

    generation: Count
    detail: Text = ""


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped"):
    """A worker has left this generation and waits for the next; what it has.

    Attributes
    ----------
    committed : int
        The last step that it has committed.
    reduced : int
        The step whose reduced gradients it keeps, -1 for none.
    layers, experts : tuple of int
        Those that it holds whole, as of ``committed``, and as of ``reduced`` once it commits that
        step.
    spare : tuple of int
        Layers that it holds as of ``committed`` alone: they are not of its assignment, so it has
        no gradients for them.
    knobs_as_of : int
        The last generation in which its knobs and its pause were those of all members.
    layer_s : tuple of float
        Measured seconds of forward and backward of each layer and micro-batch, ``(layers,)``;
        0 where it has measured none.
    expert_state : ExpertState
        As of ``committed``, too.
    """

    generation: Count
    committed: Step
    reduced: Step = -1
    layers: Parts = ()
    spare: Parts = ()
    experts: Parts = ()
    knobs_as_of: Count = 0
    layer_s: LayerSeconds = ()
    expert_state: ExpertState = NO_EXPERTS


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """A worker's process runs; ``committed`` is its last step, the others are as in Stopped."""

    committed: Step = -1
    layer_s: LayerSeconds = ()
    expert_state: ExpertState = NO_EXPERTS


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag="leave"):
    """A worker ends on purpose: ``finished`` with all steps, the last of them ``committed``.

    Not ``at_once``: it takes part until the others have agreed to go on without it, with the
    commit of a step; then it leaves.
    """

    finished: bool = False
    committed: Step = -1
    at_once: bool = True


FromWorker = Join | Fault | Stopped | Beat | Leave


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """The first message of a client that looks at a rendezvous; the answer is an Outlook.

    Attributes
    ----------
    follow : bool
        Whether a new Outlook follows after each change, until the connection ends.
    decides : bool
        Whether the client decides on planned changes, as a Weaver may: for a few seconds after
        each such message the rendezvous makes none by itself.
    """

    follow: bool = False
    decides: bool = False


class Outlook(msgspec.Struct, frozen=True, kw_only=True, tag="outlook"):
    """The state of a rendezvous.

    Attributes
    ----------
    phase : str
        ``forming``, ``running`` or ``stopping``.
    waits_for : int
        How many workers are missing before the first generation.
    program : Join, optional
        That of the first worker: what the program is.
    layer_s : tuple of float, (layers,)
        Of a usual worker, as they have measured them; 0 where none has.
    slowness : dict of str to float
        By how much longer layers take on slow workers.
    fixed_s : float
        Seconds of a step beyond those of its layers; 0 as long as they are unknown.
    committed : int
        The last step that any worker has said it has committed.
    tokens : tuple of float, (experts,)
        As in ExpertState.
    mirrors : dict of str to tuple of Mirror
        Experts in the memory of workers that do not hold them.
    nodes : dict of str to str
        The nodes of workers that have named one.
    offer : Offer, optional
        The planned change that the rendezvous would make, if a client decides on it.
    left_out : tuple of str
        Standbys that take no part: a change has named them.
    answered : Answered
        What became of the last change.
    cause : str
        Why the last generation ended, such as a death; empty if that was planned.
    """

    phase: ShortText
    waits_for: Count = 0
    assignment: Assignment | None = None
    standbys: tuple[Name, ...] = ()
    program: Join | None = None
    layer_s: LayerSeconds = ()
    slowness: dict[Name, float] = {}
    fixed_s: float = 0.0
    committed: Step = -1
    tokens: Measured = ()
    mirrors: dict[Name, tuple[Mirror, ...]] = {}
    nodes: dict[Name, Name] = {}
    offer: Offer | None = None
    left_out: tuple[Name, ...] = ()
    answered: Answered = Answered()
    cause: ShortText = ""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Cut the connections of this generation, which is over, and say what you have."""

    generation: Count
    why: ShortText = ""


class Regroup(msgspec.Struct, frozen=True, kw_only=True, tag="regroup"):
    """Vote for generation ``next``: once all have, stop after that step."""

    next: Count
    why: ShortText = ""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The next generation.

    Attributes
    ----------
    committed : int
        The step to roll forward to: one worker at least has committed it.
    store : str
        Address of the key-value store through which its groups are formed.
    knobs_of : str
        The member whose knobs and pause are taken over by those that had no part before; empty in
        the first generation.
    copies : tuple of Copy
        Layers to send and receive, in this order, after rolling forward.
    expert_copies : tuple of Copy
        Experts, likewise; ``layer`` is the expert's number.
    """

    assignment: Assignment
    committed: Step
    store: ShortText
    knobs_of: ShortText = ""
    copies: Annotated[tuple[Copy, ...], msgspec.Meta(max_length=4 * MAX_PARTS)] = ()
    expert_copies: Annotated[tuple[Copy, ...], msgspec.Meta(max_length=4 * MAX_PARTS)] = ()


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag="halt"):
    """The program ends for this worker.

    ``lost``: no assignment is possible; ``refused``: the worker is not one of this program's;
    ``finished``: all others have done all steps.
    """

    why: Text
    status: Literal["lost", "refused", "finished"] = "lost"


FromRendezvous = Stop | Regroup | Begin | Halt
