"""The order of the groups in a quorum's ring, from the members' handles.

A rank is a group's number in torchft. In the wrapped process group each group has its position
in the ring instead.
"""

import json
from collections.abc import Sequence
from typing import TypeVar

from torchloom_core.wire.limits import MAX_ORDER

_KEY = "torchloom_place"
_NONE = -1
"""The place of a group that the order does not name."""

_Part = TypeVar("_Part")


class Ring:
    """The order of a quorum's ranks in the ring.

    ``ranks``: the rank at each position, every rank once.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.is_plain = ranks == tuple(range(len(ranks)))

    def position(self, rank: int) -> int:
        """Return a rank's position."""
        return self.ranks.index(rank)

    def by_position(self, by_rank: Sequence[_Part]) -> list[_Part]:
        """Return the ranks' items in the order of the positions; an empty list for an empty one."""
        return [by_rank[rank] for rank in self.ranks] if by_rank else []

    def by_rank(self, by_position: Sequence[_Part]) -> list[_Part]:
        """Return the positions' items in the order of the ranks."""
        return [by_position[self.position(rank)] for rank in range(len(self.ranks))]


def with_place(handle: str, order: str, group: str) -> str:
    """Return a handle with the group's place in ``order``; unchanged if it cannot contain it."""
    names = order.split(",") if order else []
    place = names.index(group) if group in names else _NONE
    try:
        return json.dumps({**json.loads(handle), _KEY: place})
    except (ValueError, TypeError):  # a process group of the user's own
        return handle


def ring_of(handles: Sequence[str]) -> Ring:
    """Return the ring of a quorum's handles, which are in the order of the ranks.

    The same handles make the same ring on all members: torchft's order decides between equal
    places, and if one handle has no place, the whole ring keeps torchft's order.
    """
    ranks = range(len(handles))
    places = [_place(handle) for handle in handles]
    if None in places:
        return Ring(tuple(ranks))
    last = MAX_ORDER
    keys = [last if place in (_NONE, None) else place for place in places]
    return Ring(tuple(sorted(ranks, key=keys.__getitem__)))


def on_new_keys(handles: Sequence[str], name: str) -> list[str]:
    """Return handles with which the members meet at new keys of the store."""
    first = json.loads(handles[0])
    return [json.dumps({**first, "store": f"{first['store']}/{name}"}), *handles[1:]]


def _place(handle: str) -> int | None:
    """Return the place in a handle, None if there is no valid one."""
    try:
        place = json.loads(handle)[_KEY]
    except (ValueError, TypeError, KeyError, RecursionError):  # any member's, so unchecked
        return None
    return place if type(place) is int and _NONE <= place < MAX_ORDER else None
