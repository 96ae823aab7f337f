"""Find a better order of the ring, once all links among the groups are known."""

import math
from collections.abc import Generator, Sequence

import numpy as np

from torchloom_core.plugin import MAX_ORDER, Floats, Links, PluginError
from torchloom_policies.allreduce.ring_order import Ring, RingSolver, ring_of

_SAME = 0.1
"""Links that have changed by less than this share give no new ring."""
_MOST_GROUPS = 64
"""For more groups one solver call may take too long for a tick."""
_TICK_S = 0.005
"""Time per tick in the solver's seconds; the search continues at the next tick."""


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
