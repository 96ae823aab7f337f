"""Find the order of workers in a ring that maximizes the bandwidth of its slowest link.

The slowest link sets the pace of a ring. The solver finds the Hamiltonian cycle with the greatest
minimum bandwidth (bottleneck) exactly: a binary search over the bandwidths, in which each step asks
CP-SAT for a cycle of links at least that fast. Among these cycles it takes the one with the
smallest sum of times.
"""

import importlib
import itertools
import math
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import MAX_ORDER, Floats, Links, PluginError

_MESSAGE_BYTES = 1e6
"""Message size by which rings with equal bottlenecks are compared."""
_ROUNDS = 50
_TRIVIAL = 3
_FINEST = 1_000_000
_SHARES = (0.7, 0.3)
"""Shares of the solver's time: for the bottleneck, and then for the sum of times."""
_FIRST, _PARTS = 2, 4
_MOST_S = 0.02
"""Time limit of one solver call, so that it does not delay a tick."""
_ARC_S = 3e-6
"""Time to add one link to a solver call, in the solver's seconds."""
_SAME = 0.1
"""Links that have changed by less than this share give no new ring."""
_MOST_GROUPS = 64
"""For more groups one solver call may take too long for a tick."""
_TICK_S = 0.005
"""Time per tick in the solver's seconds; the search continues at the next tick."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Ring:
    """A ring, in which each of ``order`` sends to the next, and the last to the first, which is 0.

    ``bottleneck`` is in bytes per second over its slowest link, inf without any; ``seconds`` is the
    sum over its links of the time of a 1 MB message. If the bottleneck is not ``proven`` optimal,
    the ring is the best found in time.
    """

    order: tuple[int, ...]
    bottleneck: float
    seconds: float
    proven: bool


class RingSolver:
    """Finds the best ring, deterministically.

    ``limit_s`` is the time limit of the search, in CP-SAT's deterministic seconds. Raises
    PluginError if ortools is not installed.
    """

    def __init__(self, limit_s: float = 0.15) -> None:
        try:
            self._cp: Any = importlib.import_module("ortools.sat.python.cp_model")
        except ImportError as error:
            raise PluginError(
                f"ring order: need the extra tuner, pip install 'torchloom[tuner]': {error}"
            ) from None
        self._limit_s = limit_s

    def search(self, bytes_per_s: Floats, latency_s: Floats) -> Generator[float, None, Ring | None]:
        """Return the best ring, None if the links form none.

        Yields the duration of each solver call, in the solver's seconds, so that the caller can
        pause the search. Both arrays are (n, n), from row to column: ``bytes_per_s`` is 0 without
        a link, and a NaN in ``latency_s`` counts as 0.
        """
        speed = np.array(bytes_per_s, dtype=float)
        np.fill_diagonal(speed, 0.0)
        delay = np.nan_to_num(latency_s)
        with np.errstate(divide="ignore"):
            seconds = np.where(speed > 0, _MESSAGE_BYTES / speed + delay, math.inf)
        if len(speed) <= _TRIVIAL:
            orders = [(0, *rest) for rest in itertools.permutations(range(1, len(speed)))]
            rings = filter(None, (ring_of(order, speed, delay) for order in orders))
            return max(rings, key=lambda ring: (ring.bottleneck, -ring.seconds), default=None)
        found = yield from self._search(speed, seconds)
        return None if found is None else ring_of(found[0], speed, delay, proven=found[1])

    def _search(
        self, known: Floats, seconds: Floats
    ) -> Generator[float, None, tuple[tuple[int, ...], bool] | None]:
        """Return the order with the greatest bottleneck, and whether that is proven."""
        levels = np.unique(known[known > 0])
        able = bisect_left(levels, True, key=lambda level: not _could_close(known >= level))
        if not able:
            return None
        best = _first_cycle(known)
        low = -1 if best is None else int(np.searchsorted(levels, _least(known, best)))
        high, limit_s, unproven = able - 1, self._limit_s * _SHARES[0], False
        probe = high  # in random networks the bound is nearly always reached
        while low < high and limit_s > 0:
            # A hard call must leave time for the easier ones.
            part_s = limit_s / (_FIRST if probe == able - 1 else _PARTS)
            links = known >= levels[probe]
            found, elapsed_s, sure = self._cycle(links, min(part_s, _MOST_S))
            limit_s -= elapsed_s
            yield elapsed_s + _ARC_S * int(links.sum())
            if found is not None:
                best, low = found, int(np.searchsorted(levels, _least(known, found)))
            else:
                high, unproven = probe - 1, unproven or not sure
            probe = (low + high + 1) // 2
        if best is None:
            return None
        fast = known >= _least(known, best)
        limit_s = min(self._limit_s * _SHARES[1], _MOST_S)
        shorter, elapsed_s, _ = self._cycle(fast, limit_s, seconds, best)
        yield elapsed_s + _ARC_S * int(fast.sum())
        return shorter or best, low >= high and not unproven

    def _cycle(
        self,
        links: Bools,
        limit_s: float,
        seconds: Floats | None = None,
        hint: tuple[int, ...] | None = None,
    ) -> tuple[tuple[int, ...] | None, float, bool]:
        """Return a cycle over ``links``, the time taken, and whether the answer is certain."""
        model = self._cp.CpModel()
        arcs = [
            (int(i), int(j), model.NewBoolVar("")) for i, j in zip(*np.nonzero(links), strict=True)
        ]
        model.AddCircuit(arcs)
        if seconds is not None:
            longest = float(seconds[links].max())
            model.Minimize(
                sum(max(1, round(seconds[i, j] / longest * _FINEST)) * arc for i, j, arc in arcs)
            )
        if hint is not None:
            used = set(_links(hint))
            for i, j, arc in arcs:
                model.AddHint(arc, (i, j) in used)
        solver = self._cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False  # afterwards Ctrl-C would end the process
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = limit_s
        status = solver.Solve(model)
        elapsed_s = solver.ResponseProto().deterministic_time
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return None, elapsed_s, status == self._cp.INFEASIBLE
        after = {i: j for i, j, arc in arcs if solver.BooleanValue(arc)}
        order = [0]
        while after[order[-1]]:
            order.append(after[order[-1]])
        return tuple(order), elapsed_s, True


def ring_of(
    order: tuple[int, ...], bytes_per_s: Floats, latency_s: Floats, *, proven: bool = True
) -> Ring | None:
    """Return a ring with its quality, None if one of its links does not work."""
    links = list(_links(order)) if len(order) > 1 else []
    speeds = [float(bytes_per_s[link]) for link in links]
    if 0 in speeds:
        return None
    delays_s = (float(np.nan_to_num(latency_s[link])) for link in links)
    return Ring(
        order=order,
        bottleneck=min(speeds, default=math.inf),
        seconds=sum(_MESSAGE_BYTES / s + delay for s, delay in zip(speeds, delays_s, strict=True)),
        proven=proven,
    )


def _links(order: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(order, (*order[1:], order[0]), strict=True)


def _least(known: Floats, order: tuple[int, ...]) -> float:
    return float(min(known[link] for link in _links(order)))


def _could_close(links: Bools) -> bool:
    """Return False if a worker is not reachable from all, or all are not from it."""
    return _reaches_all(links) and _reaches_all(links.T)


def _first_cycle(bytes_per_s: Floats) -> tuple[int, ...] | None:
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


def _reaches_all(links: Bools) -> bool:
    seen = np.zeros(len(links), dtype=bool)
    seen[0] = True
    while True:
        more = seen | links[seen].any(axis=0)
        if (more == seen).all():
            return bool(seen.all())
        seen = more


class RingAdvice:
    """Runs the solver when the links have changed, one or a few calls per tick."""

    def __init__(self, wanted: bool) -> None:
        self._no_solver = ""
        self._solver: RingSolver | None = None
        self._search: Generator[float, None, Ring | None] | None = None
        self._links: Floats = np.zeros((0, 0))
        self._groups: tuple[str, ...] = ()
        self._best: Ring | None = None
        try:
            self._solver = RingSolver() if wanted else None
        except PluginError as error:
            self._no_solver = f"{error}; the ring's order is not tuned"

    def trouble(self, groups: Sequence[str]) -> str:
        """Return why these groups cannot be ordered, or an empty string."""
        long = len(",".join(groups))
        if self._solver is None:
            return self._no_solver
        if len(groups) > _MOST_GROUPS:
            return (
                f"the ring's order is not tuned: need at most {_MOST_GROUPS} groups, was "
                f"{len(groups)}"
            )
        if long > MAX_ORDER:
            return (
                "the ring's order is not tuned: need group names of at most "
                f"{MAX_ORDER} characters in total, was {long}"
            )
        return ""

    def can_order(self, groups: Sequence[str]) -> bool:
        """Return whether an order of these groups can be found and sent."""
        return self._solver is not None and len(groups) > 2 and not self.trouble(groups)

    def better(
        self, groups: Sequence[str], present: Sequence[int], links: Links
    ) -> tuple[Ring, float] | None:
        """Return the best ring and the speedup of its slowest link.

        None if links among ``groups`` are unknown, if they form no ring, or if the search
        continues at the next tick.
        """
        beside = ~np.eye(len(groups), dtype=bool)
        if not self.can_order(groups) or np.isnan(links.bytes_per_s[beside]).any():
            if self._search is not None:
                self._search, self._groups = None, ()
            return None
        # A search runs to its end: links whose measurements always differ would restart it forever.
        if self._groups != tuple(groups) or (self._search is None and self._changed(links)):
            assert self._solver is not None
            self._links, self._groups = links.bytes_per_s.copy(), tuple(groups)
            self._search = self._solver.search(self._links, links.latency_s.copy())
        if self._search is not None:
            self._continue(self._search)
        if self._search is not None or self._best is None:
            return None
        now = ring_of(tuple(present), links.bytes_per_s, links.latency_s)
        then = ring_of(self._best.order, links.bytes_per_s, links.latency_s)
        if then is None or now is None:
            return None
        return self._best, then.bottleneck / now.bottleneck

    def _continue(self, search: Generator[float, None, Ring | None]) -> None:
        elapsed_s = 0.0
        try:
            while elapsed_s < _TICK_S:
                elapsed_s += next(search)
        except StopIteration as ended:
            self._search, self._best = None, ended.value

    def _changed(self, links: Links) -> bool:
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.abs(np.log(links.bytes_per_s / self._links))
        return bool((times > math.log1p(_SAME)).any())
