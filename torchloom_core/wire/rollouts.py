"""The messages between rollout workers, trainers and the queue between them.

A frame is the lengths of header and body (4 and 8 bytes, big-endian), a header in msgpack, and a
body that the queue does not read. A connection has one request under way at a time. ``serial``
numbers a client's requests: one that is sent again, on another connection, is done once.
"""

import struct
from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.limits import Count, Id, ShortText

MAX_HEADER = 1 << 20
MAX_POSITIONS = 4096
"""Prompts of one batch, or of one request for prompts."""

MAX_NEXT_POSITION = 2**52
"""Below the largest position of a prompt: there are always further ones."""

MAX_KNOWN_VERSION = 2**52
"""A queue takes a client's word for weights up to this version: there are always further ones."""

MAX_TAKEN = 4096
LENGTHS = struct.Struct(">IQ")
"""The lengths of header and body, in bytes."""

WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=60)]
Positions = Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_POSITIONS)]
Version = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
"""The number of weights; -1 before the first."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A client's first message on a connection.

    Attributes
    ----------
    client : str
        The id of this process, the same on each of its connections.
    next_position : int
        One more than the last prompt that it knows of: a new queue continues there.
    version : int
        The newest weights that it knows of.
    """

    client: Id
    next_position: Annotated[int, msgspec.Meta(ge=0, le=MAX_NEXT_POSITION)] = 0
    version: Version = -1


class Put(msgspec.Struct, frozen=True, kw_only=True, tag="put"):
    """Offer a batch of ``size`` bytes; its body follows once the answer is Go.

    Attributes
    ----------
    version : int
        The weights that made it.
    positions : tuple of int
        The prompts that it answers.
    wait_s : float
        How long to wait for room.
    """

    serial: Count
    version: Version
    positions: Positions = ()
    size: Count
    wait_s: WaitSeconds = 0.0


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """Ask for at most ``count`` batches, none of them more than ``max_staleness`` versions old."""

    serial: Count
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_TAKEN)]
    max_staleness: Count
    wait_s: WaitSeconds = 0.0


class Publish(msgspec.Struct, frozen=True, kw_only=True, tag="publish"):
    """Offer weights of ``size`` bytes; their body follows once the answer is Go."""

    version: Version
    size: Count


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="fetch"):
    """Ask for weights that are newer than these."""

    newer_than: Version
    wait_s: WaitSeconds = 0.0


class Prompts(msgspec.Struct, frozen=True, kw_only=True, tag="prompts"):
    """Ask for the positions of the next prompts."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_POSITIONS)]


FromClient = Hello | Put | Take | Publish | Fetch | Prompts


class Go(msgspec.Struct, frozen=True, kw_only=True, tag="go"):
    """Send the body."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The answer to a hello, a batch or weights.

    ``outcome`` of a batch: ``full`` if there was no room, ``stale`` if it is too old already.
    """

    outcome: Literal["done", "full", "stale"] = "done"
    depth: Count = 0
    version: Version = -1


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of an answer: the client that made it, with which weights, and its bytes."""

    client: Id
    version: Version
    positions: Positions
    size: Count


class Batches(msgspec.Struct, frozen=True, kw_only=True, tag="batches"):
    """Batches, whose bodies follow one after the other; none if none came in time.

    Attributes
    ----------
    depth : int
        How many are left in the queue.
    dropped_stale : int
        How many were dropped for their age since the queue was started.
    """

    batches: tuple[Batch, ...] = ()
    depth: Count = 0
    dropped_stale: Count = 0


class Weights(msgspec.Struct, frozen=True, kw_only=True, tag="weights"):
    """The newest weights, whose body follows; ``version`` is -1 if there are no newer ones."""

    version: Version = -1


class Given(msgspec.Struct, frozen=True, kw_only=True, tag="given"):
    """The positions of prompts that this client answers, unless its connection ends before."""

    positions: Positions


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """A request that breaks a rule."""

    why: ShortText


FromQueue = Go | Done | Batches | Weights | Given | Refused
