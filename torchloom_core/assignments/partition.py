"""How a route's layers are divided among its workers."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

_EXACT = 5_000_000
"""Layers squared times workers, up to which the fewest bytes to copy are searched for."""

_SLACK = 1e-9


def smallest_maximum(costs: Sequence[float], parts: int) -> float:
    """Return the least possible cost of the most expensive of so many contiguous parts."""
    sums = [0.0, *accumulate(costs)]
    low, high = max(max(costs), sums[-1] / parts), sums[-1]
    for _ in range(100):
        middle = (low + high) / 2
        if _fits(sums, parts, middle):
            high = middle
        else:
            low = middle
        if high - low <= _SLACK * high:
            break
    return high


def divide(
    costs: Sequence[float], held: Sequence[frozenset[int]], sizes: Sequence[float]
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
    limit = smallest_maximum(costs, workers) * (1 + 1e-6)
    if layers * layers * workers > _EXACT:
        return _greedy(costs, workers, limit)
    sums = [0.0, *accumulate(costs)]
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for number, own in enumerate(held):
        missing = [0.0, *accumulate(0.0 if n in own else sizes[n] for n in range(layers))]
        reached: dict[int, tuple[float, int]] = {}
        for begin, (copied, _) in best[-1].items():
            for end in range(begin + 1, layers - (workers - number - 1) + 1):
                if sums[end] - sums[begin] > limit:
                    break
                total = copied + missing[end] - missing[begin]
                if end not in reached or total < reached[end][0]:
                    reached[end] = total, begin
        best.append(reached)
    bounds = [layers]
    for reached in reversed(best[1:]):
        bounds.append(reached[bounds[-1]][1])
    return tuple(reversed(bounds))


def _fits(sums: Sequence[float], parts: int, limit: float) -> bool:
    """Return whether greedy parts of at most ``limit`` are enough."""
    at = 0
    for _ in range(parts):
        at = bisect_right(sums, sums[at] + limit * (1 + _SLACK)) - 1
        if at == len(sums) - 1:
            return True
    return False


def _greedy(costs: Sequence[float], parts: int, limit: float) -> tuple[int, ...]:
    """Return boundaries: each part as long as the limit and the later parts allow."""
    sums = [0.0, *accumulate(costs)]
    bounds = [0]
    for left in range(parts - 1, -1, -1):
        end = bisect_right(sums, sums[bounds[-1]] + limit) - 1
        bounds.append(max(bounds[-1] + 1, min(end, len(costs) - left)))
    bounds[-1] = len(costs)
    assert all(a < b for a, b in pairwise(bounds))
    return tuple(bounds)
