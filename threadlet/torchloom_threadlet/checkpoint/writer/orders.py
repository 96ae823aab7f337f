"""What a trainer tells its writer, and what the writer answers: a line of JSON each."""

import msgspec

SLOTS = 2
"""Slots in shared memory: one is written to, one is stored."""


class NodeAddress(msgspec.Struct, kw_only=True, frozen=True):
    """A node, and the address of the store of its memory."""

    node: str
    address: str


class TierPlace(msgspec.Struct, kw_only=True, frozen=True):
    """A place in which checkpoints are stored.

    Attributes
    ----------
    name : str
        The name of the tier.
    place : str
        Its folder or URL.
    keep : int
        Complete checkpoints that stay; 0: all.
    keep_every_s : float
        Besides, the first of each such span of time stays, seconds; 0: none.
    host : str
        Where the folder is of this node's memory, the address by which other nodes reach it.
    is_small : bool
        Whether checkpoints that have a base are encoded small.
    copy, home : NodeAddress, optional
        For the memory of nodes: ``copy`` gets all files of this one, ``home``, which is rank 0's,
        what that has to know.
    """

    name: str
    place: str
    keep: int
    keep_every_s: float = 0.0
    host: str = ""
    is_small: bool = False
    copy: NodeAddress | None = None
    home: NodeAddress | None = None

    @property
    def in_memory(self) -> bool:
        """Whether it is the memory of nodes."""
        return bool(self.host)


class Begin(msgspec.Struct, kw_only=True, frozen=True, tag="begin"):
    """The first line: the tiers."""

    tiers: tuple[TierPlace, ...]


class Limit(msgspec.Struct, kw_only=True, frozen=True, tag="limit"):
    """From now on send at most so many bytes a second to other nodes and stores; 0: no limit."""

    bytes_per_s: float


class Cancel(msgspec.Struct, kw_only=True, frozen=True, tag="cancel"):
    """Wait no longer for other ranks' parts of a step: one of them could not save."""

    step: int


class Order(msgspec.Struct, kw_only=True, frozen=True, tag="order"):
    """Store a slot as a rank's part of a checkpoint, in the named tiers.

    The slot has ``bytes`` of tensors, and after them the JSON of a :class:`Shard`, ``described``
    bytes. ``good``: the folder of the newest checkpoint that is complete in the memory of nodes,
    older ones and unfinished ones go; "" if there is none. ``base``: in tiers of small ones the
    folder of the base; "": it is to be one.
    """

    slot: int
    tiers: tuple[str, ...]
    generation: int
    step: int
    token: str
    run: str
    ranks: int
    rank: int
    good: str
    base: str = ""
    bytes: int
    described: int
    owner: str


class Report(msgspec.Struct, kw_only=True, frozen=True):
    """What became of an order in one tier.

    ``stored`` or ``failed``: this tier needs the slot no more. From rank 0 then ``complete`` or
    ``incomplete`` for all ranks. ``not_removed``: an old checkpoint could not be; ``not_copied``:
    the other node's memory did not get it.
    """

    slot: int
    tier: str
    generation: int
    step: int
    what: str
    seconds: float
    bytes: int = 0
    detail: str = ""
