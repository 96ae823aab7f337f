"""An initial ring by nearest neighbour and local moves, and a check that a ring is possible."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import Floats

_ROUNDS = 50


def could_close(links: NDArray[np.bool_]) -> bool:
    """Return False if a Hamiltonian cycle over ``links`` is obviously impossible.

    That is, if a worker has no outgoing or no incoming link, or is not reachable from all.
    """
    return (
        bool(links.any(axis=0).all() and links.any(axis=1).all())
        and _reaches_all(links)
        and _reaches_all(links.T)
    )


def first_cycle(bytes_per_s: Floats) -> tuple[int, ...] | None:
    """Return a good cycle over links above 0, None if none was found.

    Follow the fastest link to an unvisited worker; then move a worker at the slowest link to the
    position where the slowest changed link is fastest.
    """
    order = [0]
    left = np.ones(len(bytes_per_s), dtype=bool)
    left[0] = False
    while left.any():
        ahead = np.where(left, bytes_per_s[order[-1]], -1.0)
        order.append(int(ahead.argmax()))
        left[order[-1]] = False
    for _ in range(_ROUNDS):
        better = _moved(order, bytes_per_s)
        if better is None:
            break
        order = better
    speeds = bytes_per_s[order, np.roll(order, -1)]
    start = order.index(0)
    return tuple(order[start:] + order[:start]) if speeds.min() > 0 else None


def _moved(order: list[int], bytes_per_s: Floats) -> list[int] | None:
    """Return the order with a worker at the slowest link moved, if that is faster."""
    speeds = bytes_per_s[order, np.roll(order, -1)]
    worst = int(speeds.argmin())
    for place in (worst, (worst + 1) % len(order)):
        one, rest = order[place], order[:place] + order[place + 1 :]
        after = np.roll(rest, -1)
        joined = np.minimum(bytes_per_s[rest, one], bytes_per_s[one, after])
        there = int(joined.argmax())
        moved = [*rest[: there + 1], one, *rest[there + 1 :]]
        if bytes_per_s[moved, np.roll(moved, -1)].min() > speeds.min():
            return moved
    return None


def _reaches_all(links: NDArray[np.bool_]) -> bool:
    seen = np.zeros(len(links), dtype=bool)
    seen[0] = True
    while True:
        more = seen | links[seen].any(axis=0)
        if (more == seen).all():
            return bool(seen.all())
        seen = more
