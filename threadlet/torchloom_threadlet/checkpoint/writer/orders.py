"""What a trainer asks of its writer, and what the writer answers: a line of JSON each."""

import msgspec


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """What the trainer asks: store a slot as a rank's part of a checkpoint.

    The slot has ``bytes`` of tensors, and after them the JSON of a :class:`Shard`, ``described``
    bytes. ``keep``: how many complete checkpoints stay, 0: all.
    """

    slot: int
    generation: int
    step: int
    token: str
    run: str
    ranks: int
    rank: int
    keep: int
    bytes: int
    described: int
    owner: str


class Report(msgspec.Struct, kw_only=True, frozen=True):
    """What became of an order.

    ``stored`` or ``failed``: its slot is free again. From rank 0 then ``complete`` or
    ``incomplete`` for all ranks, and ``not_removed`` if an old checkpoint could not be.
    """

    slot: int
    generation: int
    step: int
    what: str
    seconds: float
    detail: str = ""
