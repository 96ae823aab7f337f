"""How a route's layers are divided among its workers."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

_EXACT = 5_000_000
"""Layers squared times workers, up to which the fewest bytes to copy are searched for."""

_SLACK = 1e-9


@lru_cache(maxsize=256)
def smallest_maximum(costs: tuple[float, ...], slowness: tuple[float, ...]) -> float:
    """Return the least possible cost of the most expensive of contiguous parts.

    There is one part for each worker, in order; ``slowness`` multiplies the costs of its part.
    """
    sums = [0.0, *accumulate(costs)]
    low, high = 0.0, sums[-1] * max(slowness)
    for _ in range(100):
        middle = (low + high) / 2
        if _fits(sums, slowness, middle):
            high = middle
        else:
            low = middle
        if high - low <= _SLACK * high:
            break
    return high


def divide(
    costs: Sequence[float],
    held: Sequence[frozenset[int]],
    sizes: Sequence[float],
    slowness: Sequence[float] = (),
) -> tuple[int, ...]:
    """Return the boundaries of contiguous parts, one for each worker in order, none empty.

    The most expensive part is as cheap as possible; of such divisions the one is taken that
    copies the fewest bytes.

    Parameters
    ----------
    costs : sequence of float, (layers,)
        Of each layer, in any unit.
    held : sequence of frozenset of int, (workers,)
        The layers that each worker holds already.
    sizes : sequence of float, (layers,)
        Bytes of each layer.
    slowness : sequence of float, (workers,), optional
        By how much more a layer costs on each worker; 1 by default.

    Returns
    -------
    tuple of int, (workers + 1,)
        From 0 to the number of layers.

    Raises
    ------
    ValueError
        If there are more workers than layers.

    Examples
    --------
    >>> divide([1.0] * 6, [frozenset(range(2)), frozenset(range(4, 6))], [1.0] * 6)
    (0, 3, 6)
    """
    workers, layers = len(held), len(costs)
    if workers > layers:
        raise ValueError(f"need at least {workers} layers for {workers} workers, were {layers}")
    slowness = tuple(slowness) or (1.0,) * workers
    limit = smallest_maximum(tuple(costs), slowness) * (1 + 1e-6)
    if layers * layers * workers > _EXACT:
        return _greedy(costs, slowness, limit)
    sums = [0.0, *accumulate(costs)]
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for number, own in enumerate(held):
        missing = [0.0, *accumulate(0.0 if n in own else sizes[n] for n in range(layers))]
        reached: dict[int, tuple[float, int]] = {}
        for begin, (copied, _) in best[-1].items():
            for end in range(begin + 1, layers - (workers - number - 1) + 1):
                if (sums[end] - sums[begin]) * slowness[number] > limit:
                    break
                total = copied + missing[end] - missing[begin]
                if end not in reached or total < reached[end][0]:
                    reached[end] = total, begin
        best.append(reached)
    bounds = [layers]
    for reached in reversed(best[1:]):
        bounds.append(reached[bounds[-1]][1])
    return tuple(reversed(bounds))


def _fits(sums: Sequence[float], slowness: Sequence[float], limit: float) -> bool:
    """Return whether parts of at most ``limit`` reach the end, none of them empty."""
    if min(slowness) == max(slowness):
        return _fits_alike(sums, len(slowness), limit / slowness[0])
    reached = {0}  # the longest part need not be the best: the next worker has to take a layer, too
    for slower in slowness:
        after: set[int] = set()
        beyond = 0
        for at in sorted(reached):
            end = bisect_right(sums, sums[at] + limit * (1 + _SLACK) / slower) - 1
            after.update(range(max(at, beyond) + 1, end + 1))
            beyond = max(beyond, end)
        reached = after
    return len(sums) - 1 in reached


def _fits_alike(sums: Sequence[float], parts: int, limit: float) -> bool:
    at, layers = 0, len(sums) - 1
    for number in range(parts):
        end = bisect_right(sums, sums[at] + limit * (1 + _SLACK)) - 1
        end = min(end, layers - (parts - number - 1))
        if end <= at:
            return False
        at = end
    return at == layers


def _greedy(costs: Sequence[float], slowness: Sequence[float], limit: float) -> tuple[int, ...]:
    """Return boundaries: each part as long as the limit and the later parts allow."""
    sums = [0.0, *accumulate(costs)]
    bounds = [0]
    for number, slower in enumerate(slowness):
        left = len(slowness) - number - 1
        end = bisect_right(sums, sums[bounds[-1]] + limit / slower) - 1
        bounds.append(max(bounds[-1] + 1, min(end, len(costs) - left)))
    bounds[-1] = len(costs)
    assert all(a < b for a, b in pairwise(bounds))
    return tuple(bounds)
