"""The holders of a program's experts, from one generation to the next."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from torchloom_core.assignments.experts import (
    Placed,
    imbalance,
    place,
    price_of_moves,
    replicate,
    worker_loads,
)
from torchloom_core.assignments.price import Rates
from torchloom_core.wire.generations import ExpertLayer

EVEN = 1.05
"""Largest load of a worker over the mean up to which no expert is copied to level the loads."""

_WORTH = 0.03
"""Experts are moved only if a step becomes shorter by this share."""

Held = Mapping[str, frozenset[int]]
"""By worker, the experts that it holds whole and of the same step."""


class Loads(NamedTuple):
    """What is known of the experts' work.

    Attributes
    ----------
    tokens : sequence of float, (experts,)
        In a step; empty if not measured.
    token_s : float
        Seconds of forward and backward of an expert on one token.
    """

    tokens: Sequence[float] = ()
    token_s: float = 0.0


def ranges(layers: Sequence[ExpertLayer]) -> list[range]:
    """Return the numbers of each layer's experts."""
    ends = list(accumulate(layer.experts for layer in layers))
    return [range(e - layer.experts, e) for e, layer in zip(ends, layers, strict=True)]


def first_holders(layers: Sequence[ExpertLayer], workers: Sequence[str]) -> Placed:
    """Give neighbouring experts to a worker, and their copies to the next workers.

    Examples
    --------
    >>> first_holders([ExpertLayer(4, copies=2)], ["a", "b"])
    (('a', 'b'), ('a', 'b'), ('b', 'a'), ('b', 'a'))
    """
    count = len(workers)
    return tuple(
        tuple(
            workers[(number * count // layer.experts + copy) % count]
            for copy in range(min(max(layer.copies, 1), count))
        )
        for layer in layers
        for number in range(layer.experts)
    )


def restored(held: Held, mirrors: Mapping[str, Mapping[int, int]]) -> dict[int, tuple[str, int]]:
    """Return the experts that no worker holds, but one has in its memory.

    Parameters
    ----------
    mirrors
        By worker, the experts in its memory, and as of which step.

    Returns
    -------
    dict of int to tuple of str and int
        The worker with the latest state, and its step.
    """
    there = {number for own in held.values() for number in own}
    found: dict[int, tuple[str, int]] = {}
    for worker, memory in mirrors.items():
        for number, step in memory.items():
            if number not in there and (number not in found or found[number][1] < step):
                found[number] = worker, step
    return found


def next_holders(wanted: Placed, workers: Sequence[str], held: Held) -> Placed:
    """Return the holders of each expert among the workers of the next generation.

    They are those that are wanted, as far as they have a part; else, of those that hold the
    expert and have a part, the one with the fewest; none if there is no such worker.
    """
    has: dict[int, list[str]] = {}
    for worker, own in held.items():
        for number in own:
            has.setdefault(number, []).append(worker)
    count = dict.fromkeys(workers, 0)
    found = []
    for number, names in enumerate(wanted):
        sources = [name for name in has.get(number, []) if name in count]
        kept = tuple(name for name in names if name in count) if sources else ()
        if sources and not kept:
            kept = (min(sources, key=count.__getitem__),)
        for name in kept:
            count[name] += 1
        found.append(kept)
    return tuple(found)


def placed(
    present: Placed,
    workers: Sequence[str],
    layers: Sequence[ExpertLayer],
    loads: Loads,
    *,
    step_s: float,
    rates: Rates,
) -> tuple[Placed, str]:
    """Return holders that are better than the present ones, and why; the same and "" if none are.

    A lost copy is made again. Experts with one copy are moved, and hot ones copied, by their
    measured tokens, if that pays within the horizon.

    Parameters
    ----------
    step_s
        Time of a step.
    """
    found = list(present)
    reasons = []
    for layer, numbers in zip(layers, ranges(layers), strict=True):
        part = slice(numbers.start, numbers.stop)
        if again := _copied_again(present[part], workers, layer.copies):
            found[part] = again
            reasons.append("lost copies of experts made again")
        elif layer.copies <= 1 and loads.tokens:
            moved = _levelled(present[part], workers, layer, loads.tokens[part])
            if _pays(present[part], moved, loads, part, layer, step_s, rates):
                found[part] = moved
                reasons.append("experts placed by their tokens")
    return tuple(found), "; ".join(dict.fromkeys(reasons))


def _copied_again(present: Placed, workers: Sequence[str], copies: int) -> Placed:
    """Return each expert with so many holders again; nothing if none has lost one."""
    wanted = min(copies, len(workers))
    if not any(0 < len(names) < wanted for names in present):
        return ()
    count = {worker: sum(worker in names for names in present) for worker in workers}
    found = []
    for names in present:
        holders = list(names)
        while 0 < len(holders) < wanted:
            free = [worker for worker in workers if worker not in holders]
            holders.append(min(free, key=count.__getitem__))
            count[holders[-1]] += 1
        found.append(tuple(holders))
    return tuple(found)


def _levelled(
    present: Placed, workers: Sequence[str], layer: ExpertLayer, tokens: Sequence[float]
) -> Placed:
    """Return the existing experts' best holders, with copies of hot ones where there is room."""
    exist = [number for number, names in enumerate(present) if names]
    if not exist:
        return present
    per_worker = max(layer.per_worker, ceil(len(exist) / len(workers)))
    own = [tokens[number] for number in exist]
    moved = place(own, workers, per_worker, tuple(present[number] for number in exist))
    if imbalance(worker_loads(own, moved, workers)) > EVEN:
        spare = {w: per_worker - sum(w in names for names in moved) for w in workers}
        moved = replicate(own, moved, spare)
    by_number = dict(zip(exist, moved, strict=True))
    return tuple(by_number.get(number, ()) for number in range(len(present)))


def _pays(
    present: Placed,
    moved: Placed,
    loads: Loads,
    part: slice,
    layer: ExpertLayer,
    step_s: float,
    rates: Rates,
) -> bool:
    tokens = loads.tokens[part]
    workers = [*dict.fromkeys(name for names in (*present, *moved) for name in names)]
    most = max(worker_loads(tokens, present, workers), default=0.0)
    moves = price_of_moves(
        present,
        moved,
        tokens,
        expert_s=loads.token_s * most,
        expert_bytes=layer.expert_bytes,
        bytes_per_s=rates.bytes_per_s,
    )
    if not step_s or moves.saved_s < _WORTH * step_s:
        return False
    saved_s = moves.saved_s * rates.horizon_s / step_s
    return saved_s > rates.set_up_s + step_s + moves.transfer_s
