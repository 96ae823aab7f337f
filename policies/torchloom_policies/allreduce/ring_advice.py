"""Say which order of the ring is better than the present one, once all its links are known."""

import math
from collections.abc import Sequence

import numpy as np

from torchloom_core.plugin import Floats, Links, PluginError
from torchloom_policies.allreduce.ring_order import Ring, RingSolver, ring_of

_SAME = 0.1
"""Links that have changed by less than this share give no new ring."""


class RingAdvice:
    """Asks the solver when the links have changed.

    Attributes
    ----------
    trouble : str
        Why there is no solver, or nothing.
    """

    def __init__(self, wanted: bool) -> None:
        self.trouble = ""
        self._solver: RingSolver | None = None
        self._links: Floats = np.zeros((0, 0))
        self._groups: tuple[str, ...] = ()
        self._best: Ring | None = None
        try:
            self._solver = RingSolver() if wanted else None
        except PluginError as error:
            self.trouble = f"{error}; the ring's order is left as it is"

    @property
    def wanted(self) -> bool:
        """Whether orders can be found."""
        return self._solver is not None

    def better(
        self, groups: Sequence[str], present: Sequence[int], links: Links
    ) -> tuple[Ring, float] | None:
        """Return the best ring and by how many times its slowest link is faster.

        None where not all links among ``groups`` are known, or no ring is closed by them.
        """
        beside = ~np.eye(len(groups), dtype=bool)
        if self._solver is None or len(groups) < 3 or np.isnan(links.bytes_per_s[beside]).any():
            return None
        if self._changed(groups, links.bytes_per_s):
            self._links, self._groups = links.bytes_per_s.copy(), tuple(groups)
            self._best = self._solver.best(links.bytes_per_s, links.latency_s)
        best = self._best
        if best is None:
            return None
        now = ring_of(tuple(present), links.bytes_per_s, links.latency_s)
        then = ring_of(best.order, links.bytes_per_s, links.latency_s)
        if then is None or now is None:
            return None
        return best, then.bottleneck / now.bottleneck

    def _changed(self, groups: Sequence[str], bytes_per_s: Floats) -> bool:
        if self._groups != tuple(groups):
            return True
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.abs(np.log(bytes_per_s / self._links))
        return bool((times > math.log1p(_SAME)).any())
