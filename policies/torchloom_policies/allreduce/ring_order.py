"""Find the order in which workers stand in a ring so that its slowest link is as fast as can be.

The slowest link of a ring sets the pace of the whole, so what is looked for is the Hamiltonian
cycle with the greatest least bandwidth, exactly: a search over the bandwidths that occur, each
step a question to CP-SAT (is there a cycle of links at least so fast?). Of all such cycles the one
with the least sum of times is taken.
"""

import importlib
import itertools
import math
from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin import Floats, PluginError
from torchloom_policies.allreduce.ring_start import could_close, first_cycle

_MESSAGE_BYTES = 1e6
"""Of the messages by whose times rings with one and the same slowest link are told apart."""

_TRIVIAL = 3
_FINEST = 1_000_000
_SHARES = (0.7, 0.3)
"""Of the solver's time: for the slowest link, and then for the sum of times."""
_FIRST, _PARTS = 2, 4
_MOST_S = 0.02
"""Of one question, so that nobody who waits for its answer waits long."""
_ARC_S = 3e-6
"""What it takes to put one link into a question, in the solver's seconds."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Ring:
    """A ring, and how good it is.

    Attributes
    ----------
    order : tuple of int
        Each sends to the next, the last to the first, which is 0.
    bottleneck : float
        Bytes a second over its slowest known link, inf where it has none.
    seconds : float
        The sum over its known links of the time of a message of a megabyte.
    unknown : int
        Of how many of its links nothing is known.
    proven : bool
        Whether no ring has a faster slowest link; else it is the best that was found in time.
    """

    order: tuple[int, ...]
    bottleneck: float
    seconds: float
    unknown: int
    proven: bool


class RingSolver:
    """Finds the best ring; the same for the same links.

    Parameters
    ----------
    limit_s : float
        For how long CP-SAT may search, in its own deterministic seconds.

    Raises
    ------
    PluginError
        If ortools is not installed.
    """

    def __init__(self, limit_s: float = 0.15) -> None:
        try:
            self._cp: Any = importlib.import_module("ortools.sat.python.cp_model")
        except ImportError as error:
            raise PluginError(
                f"ring order: need the extra tuner, pip install 'torchloom[tuner]': {error}"
            ) from None
        self._limit_s = limit_s

    def best(self, bytes_per_s: Floats, latency_s: Floats | None = None) -> Ring | None:
        """Return the best ring, as :meth:`search` does, in one go."""
        search = self.search(bytes_per_s, latency_s)
        while True:
            try:
                next(search)
            except StopIteration as ended:
                return cast("Ring | None", ended.value)

    def search(
        self, bytes_per_s: Floats, latency_s: Floats | None = None
    ) -> Generator[float, None, Ring | None]:
        """Return the best ring, None where the links that work close none.

        After each question it yields what the question took, in the solver's seconds: the search
        may go on later.

        Parameters
        ----------
        bytes_per_s : (n, n) array
            From row to column; 0 where there is no link, NaN where nothing is known, which is
            used only where no ring does without.
        latency_s : (n, n) array, optional
            NaN counts as nothing.
        """
        speed = np.array(bytes_per_s, dtype=float)
        if not len(speed):
            return None
        np.fill_diagonal(speed, 0.0)
        speed[speed < 0] = 0.0
        delay = np.zeros_like(speed) if latency_s is None else np.nan_to_num(latency_s)
        known = np.nan_to_num(speed, nan=0.0, posinf=np.finfo(float).max)
        with np.errstate(divide="ignore", over="ignore"):
            seconds = np.where(known > 0, _MESSAGE_BYTES / known + np.maximum(delay, 0.0), math.inf)
        if len(speed) <= _TRIVIAL:
            orders = [(0, *rest) for rest in itertools.permutations(range(1, len(speed)))]
            rings = [ring_of(order, speed, delay) for order in orders]
            return max(filter(None, rings), key=_worth, default=None)
        found = yield from self._search(known, seconds)
        if found is None and np.isnan(speed).any():
            # What is unknown is slower than all that is known, so as little of it as can be.
            worst = float(seconds[np.isfinite(seconds)].max(initial=1.0)) * len(speed)
            least = float(known[known > 0].min(initial=1.0))
            unknown = np.isnan(speed)
            found = yield from self._search(
                np.where(unknown, least / 2, known), np.where(unknown, worst, seconds)
            )
        if found is None:
            return None
        order, proven = found
        ring = ring_of(order, speed, delay, proven=proven)
        assert ring is not None
        return ring

    def _search(
        self, known: Floats, seconds: Floats
    ) -> Generator[float, None, tuple[tuple[int, ...], bool] | None]:
        """Return the order with the greatest least bandwidth, and whether that is proven."""
        levels = np.unique(known[known > 0])
        able = bisect_left(levels, True, key=lambda level: not could_close(known >= level))
        if not able:
            return None
        best = first_cycle(known)
        low = -1 if best is None else int(np.searchsorted(levels, _least(known, best)))
        high, limit_s, doubt = able - 1, self._limit_s * _SHARES[0], False
        probe = high  # in random networks the bound is nearly always met
        while low < high and limit_s > 0:
            # A question that is hard to answer must not leave the easier ones unasked.
            part_s = limit_s / (_FIRST if probe == able - 1 else _PARTS)
            links = known >= levels[probe]
            found, spent_s, sure = self._cycle(links, min(part_s, _MOST_S))
            limit_s -= spent_s
            yield spent_s + _ARC_S * int(links.sum())
            if found is not None:
                best, low = found, int(np.searchsorted(levels, _least(known, found)))
            else:
                high, doubt = probe - 1, doubt or not sure
            probe = (low + high + 1) // 2
        if best is None:
            return None
        fast = known >= _least(known, best)
        limit_s = min(self._limit_s * _SHARES[1], _MOST_S)
        shorter, spent_s, _ = self._cycle(fast, limit_s, seconds, best)
        yield spent_s + _ARC_S * int(fast.sum())
        return shorter or best, low >= high and not doubt

    def _cycle(
        self,
        links: Bools,
        limit_s: float,
        seconds: Floats | None = None,
        hint: tuple[int, ...] | None = None,
    ) -> tuple[tuple[int, ...] | None, float, bool]:
        """Return a cycle over ``links``, the time that took, and whether the answer is sure."""
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
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = limit_s
        status = solver.Solve(model)
        spent_s = solver.ResponseProto().deterministic_time
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return None, spent_s, status == self._cp.INFEASIBLE
        after = {i: j for i, j, arc in arcs if solver.BooleanValue(arc)}
        order = [0]
        while after[order[-1]]:
            order.append(after[order[-1]])
        return tuple(order), spent_s, True


def ring_of(
    order: tuple[int, ...], bytes_per_s: Floats, latency_s: Floats, *, proven: bool = True
) -> Ring | None:
    """Return how good a ring is, None where a link of it does not work."""
    links = list(_links(order)) if len(order) > 1 else []
    speeds = [float(bytes_per_s[link]) for link in links]
    if any(speed == 0 for speed in speeds):
        return None
    known = [(s, link) for s, link in zip(speeds, links, strict=True) if not math.isnan(s)]
    return Ring(
        order=order,
        bottleneck=min((speed for speed, _ in known), default=math.inf),
        seconds=sum(
            _MESSAGE_BYTES / speed + max(0.0, float(np.nan_to_num(latency_s[link])))
            for speed, link in known
        ),
        unknown=len(links) - len(known),
        proven=proven,
    )


def _worth(ring: Ring) -> tuple[float, float, float]:
    return -ring.unknown, ring.bottleneck, -ring.seconds


def _links(order: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(order, (*order[1:], order[0]), strict=True)


def _least(known: Floats, order: tuple[int, ...]) -> float:
    return float(min(known[link] for link in _links(order)))
