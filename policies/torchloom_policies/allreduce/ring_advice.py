"""Say which order of the ring is better than the present one, once all its links are known."""

import math
from collections.abc import Generator, Sequence

import numpy as np

from torchloom_core.plugin import MAX_ORDER, Floats, Links, PluginError
from torchloom_policies.allreduce.ring_order import Ring, RingSolver, ring_of

_SAME = 0.1
"""Links that have changed by less than this share give no new ring."""
_MOST_GROUPS = 64
"""So many are ordered exactly; of more, one question to the solver may take too long for a tick."""
_TICK_S = 0.005
"""After so many of the solver's seconds the search goes on at the next tick."""


class RingAdvice:
    """Asks the solver when the links have changed, a question or a few easy ones a tick."""

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
            self._no_solver = f"{error}; the ring's order is left as it is"

    def trouble(self, groups: Sequence[str]) -> str:
        """Return why these groups cannot be ordered, or nothing."""
        long = len(",".join(groups))
        if self._solver is None:
            return self._no_solver
        if len(groups) > _MOST_GROUPS:
            return (
                f"the ring's order is left as it is: need at most {_MOST_GROUPS} groups to order "
                f"them, was {len(groups)}"
            )
        if long > MAX_ORDER:
            return (
                "the ring's order is left as it is: need names of groups of at most "
                f"{MAX_ORDER} characters altogether to say it, was {long}"
            )
        return ""

    def can_order(self, groups: Sequence[str]) -> bool:
        """Say whether an order can be found for these groups, and that be said."""
        return self._solver is not None and len(groups) > 2 and not self.trouble(groups)

    def better(
        self, groups: Sequence[str], present: Sequence[int], links: Links
    ) -> tuple[Ring, float] | None:
        """Return the best ring and by how many times its slowest link is faster.

        None where not all links among ``groups`` are known, no ring is closed by them, or the
        search for it has to go on at the next tick.
        """
        beside = ~np.eye(len(groups), dtype=bool)
        if not self.can_order(groups) or np.isnan(links.bytes_per_s[beside]).any():
            if self._search is not None:
                self._search, self._groups = None, ()
            return None
        # A search that has begun is ended: links that never measure the same would end none.
        if self._groups != tuple(groups) or (self._search is None and self._changed(links)):
            assert self._solver is not None
            self._links, self._groups = links.bytes_per_s.copy(), tuple(groups)
            self._search = self._solver.search(self._links, links.latency_s.copy())
        if self._search is not None:
            self._go_on(self._search)
        if self._search is not None or self._best is None:
            return None
        now = ring_of(tuple(present), links.bytes_per_s, links.latency_s)
        then = ring_of(self._best.order, links.bytes_per_s, links.latency_s)
        if then is None or now is None:
            return None
        return self._best, then.bottleneck / now.bottleneck

    def _go_on(self, search: Generator[float, None, Ring | None]) -> None:
        spent_s = 0.0
        try:
            while spent_s < _TICK_S:
                spent_s += next(search)
        except StopIteration as ended:
            self._search, self._best = None, ended.value

    def _changed(self, links: Links) -> bool:
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.abs(np.log(links.bytes_per_s / self._links))
        return bool((times > math.log1p(_SAME)).any())
