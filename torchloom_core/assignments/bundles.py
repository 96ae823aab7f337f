"""Packs experts into bundles, one for each worker, so that the most loaded one is light."""

from collections.abc import Sequence

_NODES = 20_000
"""Placements that the exact search looks at before it takes the best one so far."""

_SLACK = 1e-9

Bundles = list[set[int]]
"""The experts of each worker, ``(workers,)``."""


def heaviest(bundles: Sequence[set[int]], loads: Sequence[float]) -> float:
    """Return the largest load of a bundle."""
    return max(sum(loads[expert] for expert in bundle) for bundle in bundles)


def pack(loads: Sequence[float], room: Sequence[int]) -> Bundles:
    """Return bundles whose heaviest is as light as possible.

    The search is exact until it has looked at 20,000 placements: for 8 experts on 4 workers always.

    Parameters
    ----------
    loads : sequence of float, (experts,)
        Not negative.
    room : sequence of int, (workers,)
        How many experts each bundle takes, in total at least as many as there are.
    """
    order = sorted(range(len(loads)), key=lambda expert: -loads[expert])
    bundles: Bundles = [set() for _ in room]
    for expert in order:
        free = [n for n in range(len(room)) if len(bundles[n]) < room[n]]
        weights = [sum(loads[e] for e in bundle) for bundle in bundles]
        bundles[min(free, key=lambda n: weights[n])].add(expert)
    improve(bundles, loads, room)
    return _Search(loads, room, order, bundles).run()


def improve(
    bundles: Bundles, loads: Sequence[float], room: Sequence[int], enough: float = 0.0
) -> None:
    """Move and swap experts between bundles, in place, while the heaviest becomes lighter.

    Afterwards, the heaviest bundle exceeds the mean by less than the most loaded expert: if all
    have the same room, and all experts of a bundle differ.

    Parameters
    ----------
    enough
        Stop once no bundle is heavier.
    """
    weights = [sum(loads[expert] for expert in bundle) for bundle in bundles]
    while (top := max(weights)) > enough:
        source = weights.index(top)
        best, chosen = top * (1 - _SLACK), None
        for target, other in enumerate(bundles):
            if target == source:
                continue
            back: list[int | None] = [*sorted(other - bundles[source])]
            if len(other) < room[target]:
                back.append(None)
            for out in sorted(bundles[source] - other):
                for returned in back:
                    more = loads[out] - (0.0 if returned is None else loads[returned])
                    after = max(top - more, weights[target] + more)
                    if after < best:
                        best, chosen = after, (target, out, returned)
        if chosen is None:
            return
        target, out, returned = chosen
        bundles[source].remove(out)
        bundles[target].add(out)
        if returned is not None:
            bundles[target].remove(returned)
            bundles[source].add(returned)
        for n in (source, target):
            weights[n] = sum(loads[expert] for expert in bundles[n])


def labelled(bundles: Bundles, present: Sequence[set[int]], room: Sequence[int]) -> Bundles:
    """Return the bundles in another order: each at the worker that holds most of it already.

    Only workers with the same room are exchanged.
    """
    pairs = sorted(
        (
            (len(bundle & held), n, m)
            for n, bundle in enumerate(bundles)
            for m, held in enumerate(present)
            if room[n] == room[m]
        ),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    place: dict[int, int] = {}
    for _, bundle, worker in pairs:
        if bundle not in place and worker not in place.values():
            place[bundle] = worker
    found: Bundles = [set() for _ in bundles]
    for bundle, worker in place.items():
        found[worker] = bundles[bundle]
    return found


class _Search:
    """Branch and bound: the most loaded experts first, and one of several equal workers."""

    def __init__(
        self, loads: Sequence[float], room: Sequence[int], order: Sequence[int], found: Bundles
    ) -> None:
        self._loads, self._order = loads, order
        self._free = list(room)
        self._weights = [0.0] * len(room)
        self._bundles: Bundles = [set() for _ in room]
        self._found = found
        self._best = heaviest(found, loads)
        self._least = max(sum(loads) / len(room), max(loads, default=0.0))
        self._nodes = 0

    def run(self) -> Bundles:
        """Return the best bundles found."""
        self._place(0)
        return self._found

    def _place(self, depth: int) -> None:
        self._nodes += 1
        if self._nodes > _NODES or self._best <= self._least * (1 + _SLACK):
            return
        if depth == len(self._order):
            self._best = max(self._weights)
            self._found = [set(bundle) for bundle in self._bundles]
            return
        expert = self._order[depth]
        load = self._loads[expert]
        tried: set[tuple[float, int]] = set()
        for n in sorted(range(len(self._free)), key=lambda n: self._weights[n]):
            state = (self._weights[n], self._free[n])
            if not self._free[n] or state in tried:
                continue
            tried.add(state)
            if self._weights[n] + load >= self._best * (1 - _SLACK):
                break
            before = self._weights[n]
            self._free[n] -= 1
            self._weights[n] += load
            self._bundles[n].add(expert)
            self._place(depth + 1)
            self._bundles[n].remove(expert)
            self._weights[n] = before
            self._free[n] += 1
