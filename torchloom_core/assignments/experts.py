"""Which workers hold which experts: placed by load, replicated if hot, and after a loss.

``loads`` are the tokens that the router sends to each expert, ``(experts,)``, in any unit. An
expert with several holders has an equal share of its tokens at each.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

from torchloom_core.assignments.bundles import Bundles, heaviest, improve, labelled, pack
from torchloom_core.floor.errors import AssignmentError

NEAR = 0.02
"""A placement this much above the best is as good if it moves fewer experts."""

Placed = tuple[tuple[str, ...], ...]
"""The holders of each expert, as in an Assignment, ``(experts,)``."""


class Moves(NamedTuple):
    """What another placement costs and saves.

    Attributes
    ----------
    copies : int
        Experts to send.
    copied_bytes : float
        Weights and optimizer state of those.
    transfer_s : float
        Until the worker that receives most has all its experts.
    saved_s : float
        Per step; negative if steps become longer.
    pays_after_steps : float
        Infinite if steps do not become shorter.
    """

    copies: int
    copied_bytes: float
    transfer_s: float
    saved_s: float
    pays_after_steps: float


def worker_loads(
    loads: Sequence[float], holders: Placed, workers: Sequence[str]
) -> tuple[float, ...]:
    """Return the load of each worker, ``(workers,)``."""
    totals = dict.fromkeys(workers, 0.0)
    for load, held in zip(loads, holders, strict=True):
        for worker in held:
            totals[worker] += load / len(held)
    return tuple(totals.values())


def imbalance(loads: Sequence[float]) -> float:
    """Return the largest load over the mean, at least 1; 1 where there is no load.

    Examples
    --------
    >>> imbalance([30.0, 10.0])
    1.5
    """
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def place(
    loads: Sequence[float],
    workers: Sequence[str],
    per_worker: int,
    present: Placed | None = None,
) -> Placed:
    """Give each expert one holder, so that the largest load of a worker is small.

    It is the least possible for few experts (8 on 4 workers), or up to 2 % more if that moves
    fewer of them; for many experts it exceeds the mean by less than the most loaded expert.

    Parameters
    ----------
    per_worker
        How many experts a worker holds at most.
    present
        The present holders; workers that are not among ``workers`` are gone.

    Raises
    ------
    AssignmentError
        If the experts do not fit.

    Examples
    --------
    >>> place([4.0, 3.0, 2.0, 1.0], ["a", "b"], 2)
    (('a',), ('b',), ('b',), ('a',))
    """
    room = [per_worker] * len(workers)
    if sum(room) < len(loads):
        raise AssignmentError(
            f"experts: need {len(loads)} places, were {len(workers)} workers x {per_worker}"
        )
    best = pack(loads, room)
    if present is None:
        return _holders(best, workers, len(loads))
    held = _bundles(present, workers)
    limit = heaviest(best, loads) * (1 + NEAR)
    candidates = [labelled(best, held, room)]
    kept = _kept(held, loads, room)
    improve(kept, loads, room, enough=limit)
    if heaviest(kept, loads) <= limit:
        candidates.append(kept)
    fewest = min(candidates, key=lambda found: (_copies(found, held), heaviest(found, loads)))
    return _holders(fewest, workers, len(loads))


def replicate(loads: Sequence[float], holders: Placed, spare: Mapping[str, int]) -> Placed:
    """Give hot experts one more holder each, and cold ones fewer workers, to level the loads.

    Of the holders whose largest load is within 2 % of the best, those are taken that need the
    fewest copies of experts, and of these the ones that move the fewest. Experts without a holder
    stay so.

    Parameters
    ----------
    spare
        By worker, how many experts it can hold in addition; also workers that hold none yet.
    """
    workers = [*dict.fromkeys([*(worker for held in holders for worker in held), *spare])]
    held = _bundles(holders, workers)
    room = [len(own) + spare.get(name, 0) for name, own in zip(workers, held, strict=True)]
    found = _grown(loads, held, room, enough=0.0)
    limit = min(largest for largest, _ in found) * (1 + NEAR)
    found += _grown(loads, held, room, enough=limit)
    near = [bundles for largest, bundles in found if largest <= limit]
    chosen = min(near, key=lambda bundles: (sum(map(len, bundles)), _copies(bundles, held)))
    return _holders(chosen, workers, len(loads))


def mirrors(holders: Placed, workers: Sequence[str]) -> tuple[str, ...]:
    """Return the worker that keeps each expert's state in its memory, "" for none.

    Only an expert with one holder has a mirror. Those of one holder are spread over the others.
    """
    found = []
    count = dict.fromkeys(workers, 0)
    for held in holders:
        if len(held) != 1 or len(workers) < 2:
            found.append("")
            continue
        at = workers.index(held[0])
        others = [*workers[at + 1 :], *workers[:at]]
        found.append(others[count[held[0]] % len(others)])
        count[held[0]] += 1
    return tuple(found)


def after_loss(holders: Placed, lost: Collection[str], mirrored: Sequence[str] = ()) -> Placed:
    """Return the remaining holders of each expert: none means that the router leaves it out.

    Parameters
    ----------
    mirrored : sequence of str, (experts,) or empty
        The worker that has the expert's state in its memory, "" for none: it becomes the holder
        of an expert that has no other.
    """
    found = []
    for expert, held in enumerate(holders):
        left = tuple(worker for worker in held if worker not in lost)
        peer = mirrored[expert] if mirrored else ""
        found.append(left or ((peer,) if held and peer and peer not in lost else ()))
    return tuple(found)


def price_of_moves(
    present: Placed,
    proposed: Placed,
    loads: Sequence[float],
    *,
    expert_s: float,
    expert_bytes: float,
    bytes_per_s: float,
) -> Moves:
    """Price a change of the experts' holders.

    Parameters
    ----------
    expert_s
        Seconds per step that the most loaded worker computes its experts in now.
    expert_bytes
        Weights and optimizer state of one expert.
    bytes_per_s
        From a worker to another.
    """
    workers = [*dict.fromkeys(name for held in (*present, *proposed) for name in held)]
    received = dict.fromkeys(workers, 0)
    for before, after in zip(present, proposed, strict=True):
        for worker in set(after) - set(before):
            received[worker] += 1
    copies = sum(received.values())
    transfer_s = max(received.values(), default=0) * expert_bytes / bytes_per_s
    largest = max(worker_loads(loads, present, workers), default=0.0)
    later = max(worker_loads(loads, proposed, workers), default=0.0)
    saved_s = expert_s * (1 - later / largest) if largest else 0.0
    return Moves(
        copies=copies,
        copied_bytes=copies * expert_bytes,
        transfer_s=transfer_s,
        saved_s=saved_s,
        pays_after_steps=transfer_s / saved_s if saved_s > 0 else inf,
    )


def _shares(loads: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return the load of each copy of each expert."""
    return [load / max(count, 1) for load, count in zip(loads, counts, strict=True)]


def _bundles(holders: Placed, workers: Sequence[str]) -> Bundles:
    return [{n for n, held in enumerate(holders) if worker in held} for worker in workers]


def _holders(bundles: Sequence[set[int]], workers: Sequence[str], experts: int) -> Placed:
    return tuple(
        tuple(name for name, held in zip(workers, bundles, strict=True) if expert in held)
        for expert in range(experts)
    )


def _copies(found: Sequence[set[int]], held: Sequence[set[int]]) -> int:
    return sum(len(after - before) for after, before in zip(found, held, strict=True))


def _kept(held: Bundles, loads: Sequence[float], room: Sequence[int]) -> Bundles:
    """Return the present bundles with each expert once, and those without a holder added."""
    kept: Bundles = [set() for _ in held]
    for expert in sorted(range(len(loads)), key=lambda expert: -loads[expert]):
        free = [n for n in range(len(room)) if len(kept[n]) < room[n]]
        own = [n for n in free if expert in held[n]]
        weights = [sum(loads[e] for e in bundle) for bundle in kept]
        kept[min(own or free, key=lambda n: weights[n])].add(expert)
    return kept


def _grown(
    loads: Sequence[float], held: Bundles, room: Sequence[int], enough: float
) -> list[tuple[float, Bundles]]:
    """Return what can be reached with no, one, two ... more copies, and the largest load of each.

    A copy is one of the expert that has most load at each of its holders.
    """
    bundles = [set(own) for own in held]
    counts = [sum(expert in own for own in held) for expert in range(len(loads))]
    shares = _shares(loads, counts)
    found = []
    while True:
        improve(bundles, shares, room, enough)
        found.append((heaviest(bundles, shares), [set(bundle) for bundle in bundles]))
        able = [expert for expert, count in enumerate(counts) if 0 < count < len(room)]
        if sum(counts) >= sum(room) or not able:
            return found
        hottest = max(able, key=lambda expert: shares[expert])
        counts[hottest] += 1
        shares = _shares(loads, counts)
        if not _add(bundles, hottest, shares, room):
            return found


def _add(bundles: Bundles, expert: int, shares: Sequence[float], room: Sequence[int]) -> bool:
    """Add a copy at the least loaded worker, which gives its coldest expert away if it is full."""
    weights = [sum(shares[e] for e in bundle) for bundle in bundles]
    order = sorted(range(len(bundles)), key=lambda n: weights[n])
    free = [n for n in order if len(bundles[n]) < room[n]]
    for n in order:
        if expert in bundles[n]:
            continue
        if n in free:
            bundles[n].add(expert)
            return True
        for cold in sorted(bundles[n], key=lambda e: shares[e]):
            takers = [m for m in free if cold not in bundles[m]]
            if takers:
                bundles[n].remove(cold)
                bundles[takers[0]].add(cold)
                bundles[n].add(expert)
                return True
    return False
