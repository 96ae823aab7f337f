"""What the Weaver tells a lighthouse, and what it hears of it.

The lighthouse decides alone: an act of the Weaver's is advice that it takes where it harms no
quorum, once, in the order of the numbers. A replica group is named as torchft names it, by its
``replica_id``, which is another one in each life: ``<name>:<uuid>``.
"""

from typing import Annotated, Literal

import msgspec

from torchloom_core.wire.limits import Count, Name, ReplicaId, Seconds, ShortText, Text
from torchloom_core.wire.messages import SCHEMA_VERSION

MAX_REPLICAS = 10_000
"""Replica groups that a message names at most, and that a lighthouse knows at once."""

Replicas = Annotated[tuple[ReplicaId, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="leave"):
    """These have left: nobody waits for them, until one asks for a quorum again."""

    replicas: Replicas


class Evict(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="evict"):
    """These hang in the quorum of this id: nobody waits for them, until one asks again."""

    replicas: Replicas
    quorum_id: Count


class HoldBack(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="hold"):
    """Whoever bears one of these names stays out of every quorum; it may wait for one.

    The names are all that are held from then on, so that to admit one is to leave it out.
    """

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="order"):
    """Ranks go to replica groups in the order of these names; to all others after them."""

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_REPLICAS)]


class Expect(msgspec.Struct, frozen=True, kw_only=True, tag_field="act", tag="expect"):
    """A lighthouse that knows nobody yet waits for these names, ``for_s`` at the longest.

    Its quorums get ids above ``above``, the last that is known.
    """

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_REPLICAS)]
    above: Count = 0
    for_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0


Act = Leave | Evict | HoldBack | Order | Expect


class Steer(msgspec.Struct, frozen=True, kw_only=True, tag="steer"):
    """One act, and why; ``number`` counts the acts of an epoch from 1 on."""

    run: Name
    epoch: Count
    number: Count
    do: Act
    reason: Text = ""
    v: Count = SCHEMA_VERSION


class LighthouseView(msgspec.Struct, frozen=True, kw_only=True, tag="lighthouse"):
    """What a lighthouse sees; sent when it changes, and now and then when it does not.

    Attributes
    ----------
    incarnation : int
        Start of the lighthouse's process, milliseconds since the Unix epoch.
    quorum_id : int
        Of the last quorum.
    members : tuple of str
        Who is in it.
    failed : tuple of str
        Those who now ask for the next one since their last step failed.
    silent : tuple of str
        Members who do not ask although others have been waiting for some time.
    lost : tuple of str
        Members whose process has ended, or who left, since that quorum.
    held : tuple of str
        Who is there and held back.
    aside : tuple of str
        Who was evicted or has left, and has not asked again.
    epoch, number : int
        The newest act that was dealt with.
    refused : str
        Why it was not done, or nothing.
    state : {"new", "restored"}
        Whether this life found the state of an earlier one.
    """

    run: Name
    incarnation: Count = msgspec.field(name="life")
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
    """Return the name in a replica id: what stands before torchft's UUID.

    Examples
    --------
    >>> name_of_replica("g1:8c1f7e"), name_of_replica("g1")
    ('g1', 'g1')
    """
    return replica_id.rpartition(":")[0] or replica_id
