"""Who stands next to whom in the ring of a quorum: what each handle says of it, and the ranks.

A rank is a group's number as torchft gives it. In the wrapped process group each has the number of
its seat instead, and a ring goes from seat to seat.
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
    """The seats of a quorum's ranks.

    Parameters
    ----------
    seats : tuple of int
        The rank on each seat, every rank once.
    """

    def __init__(self, seats: tuple[int, ...]) -> None:
        self.seats = seats
        self.is_plain = seats == tuple(range(len(seats)))

    def seat(self, rank: int) -> int:
        """Return where a rank sits."""
        return self.seats.index(rank)

    def by_seat(self, by_rank: Sequence[_Part]) -> list[_Part]:
        """Return what each rank has in the order of the seats; nothing of nothing."""
        return [by_rank[rank] for rank in self.seats] if by_rank else []

    def by_rank(self, by_seat: Sequence[_Part]) -> list[_Part]:
        """Return what is on each seat in the order of the ranks."""
        return [by_seat[self.seat(rank)] for rank in range(len(self.seats))]


def with_place(handle: str, order: str, group: str) -> str:
    """Return a handle that says which place ``order`` gives to ``group``; one that can say it."""
    names = order.split(",") if order else []
    place = names.index(group) if group in names else _NONE
    try:
        return json.dumps({**json.loads(handle), _KEY: place})
    except (ValueError, TypeError):  # a process group of the user's own
        return handle


def ring_of(handles: Sequence[str]) -> Ring:
    """Return the ring that a quorum's handles make, which are in the order of the ranks.

    The same handles make the same ring, whatever they say: of one place torchft's order decides,
    and where a group says none, since it does not know of any, nobody moves.
    """
    ranks = range(len(handles))
    places = [_place(handle) for handle in handles]
    if None in places:
        return Ring(tuple(ranks))
    last = MAX_ORDER
    told = [last if place in (_NONE, None) else place for place in places]
    return Ring(tuple(sorted(ranks, key=told.__getitem__)))


def on_a_store_of_its_own(handles: Sequence[str], name: str) -> list[str]:
    """Return handles by whose first the members meet at keys that nobody has used before."""
    first = json.loads(handles[0])
    return [json.dumps({**first, "store": f"{first['store']}/{name}"}), *handles[1:]]


def _place(handle: str) -> int | None:
    """Return the place that a handle says, None where it says none that could be."""
    try:
        place = json.loads(handle)[_KEY]
    except (ValueError, TypeError, KeyError, RecursionError):  # whoever is in the quorum said it
        return None
    return place if type(place) is int and _NONE <= place < MAX_ORDER else None
