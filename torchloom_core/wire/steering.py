"""The messages between the Weaver and a lighthouse.

The lighthouse decides: it follows an act of the Weaver if that harms no quorum, once, in the order
of the numbers. A replica group has torchft's ``replica_id``, ``<name>:<uuid>``, which is new for
each incarnation.
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.limits import Count, Name, ReplicaId, Seconds, ShortText, Text
from torchloom_core.wire.messages import SCHEMA_VERSION

MAX_REPLICAS = 10_000
"""Replica groups that a message may name, and that a lighthouse tracks, at most."""

Replicas = Annotated[tuple[ReplicaId, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="leave"):
    """These groups have left: no group waits for them until they request a quorum again."""

    replicas: Replicas


class Evict(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="evict"):
    """These groups hang in this quorum: no group waits for them until they request another."""

    replicas: Replicas
    quorum_id: Count


class HoldBack(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="hold"):
    """Groups with these names stay out of every quorum, but may wait for one.

    The list replaces the earlier one, so that a group is admitted by leaving it out.
    """

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="order"):
    """Replica groups get ranks in the order of these names; all others come after them."""

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class Expect(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="expect"):
    """A restarted lighthouse waits for these names, ``for_s`` seconds at most.

    Its quorum ids start above ``above``, the last known one.
    """

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_REPLICAS)]
    above: Count = 0
    for_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0


Act = Leave | Evict | HoldBack | Order | Expect


class Steer(msgspec.Struct, frozen=True, kw_only=True, tag="steer"):
    """One act and its reason; ``number`` counts the acts of an epoch from 1."""

    run: Name
    epoch: Count
    number: Count
    do: Act
    reason: Text = ""
    v: Count = SCHEMA_VERSION


class LighthouseView(msgspec.Struct, frozen=True, kw_only=True, tag="lighthouse"):
    """The state of a lighthouse; sent when it changes, and periodically.

    Attributes
    ----------
    incarnation : int
        Start of the lighthouse's process, milliseconds since the Unix epoch.
    quorum_id : int
        The id of the last quorum.
    members : tuple of str
        Its members.
    failed : tuple of str
        Groups that request the next quorum because their last step failed.
    silent : tuple of str
        Members that have not requested the next quorum while others have waited for some time.
    lost : tuple of str
        Members whose process has ended, or that left, since that quorum.
    held : tuple of str
        Present groups that are held back.
    aside : tuple of str
        Groups that were evicted or left, and have not requested a quorum since.
    epoch, number : int
        The newest processed act.
    refused : str
        Why it was refused, or empty.
    state : {"new", "restored"}
        Whether this process found the state of an earlier one.
    """

    run: Name
    incarnation: Count
    quorum_id: Count
    members: Replicas = ()
    failed: Replicas = ()
    silent: Replicas = ()
    lost: Replicas = ()
    held: Replicas = ()
    aside: Replicas = ()
    epoch: Count = 0
    number: Count = 0
    refused: Text = ""
    state: Literal["new", "restored"] = "new"
    waiting_s: Seconds = 0.0
    v: Count = SCHEMA_VERSION


def name_of_replica(replica_id: str) -> str:
    """Return the name in a replica id: the part before torchft's UUID.

    Examples
    --------
    >>> name_of_replica("g1:8c1f7e"), name_of_replica("g1")
    ('g1', 'g1')
    """
    return replica_id.rpartition(":")[0] or replica_id
