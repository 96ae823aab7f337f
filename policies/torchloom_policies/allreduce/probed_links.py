"""Results of probes of the links among a run's groups, since the links last changed."""

import math

import numpy as np

from torchloom_core.plugin import Floats, Links

_CHANGED = math.log(1.5)
SAME_S = 1e-3
"""Times closer than this belong to the same measurement."""

Bools = np.ndarray[tuple[int, int], np.dtype[np.bool_]]


class ProbedLinks:
    """The last two measurements of each link; the faster counts.

    Interference makes a probe slower, never faster.
    """

    def __init__(self) -> None:
        self._groups: tuple[str, ...] = ()
        self._newest: Floats = np.zeros((0, 0))
        self._earlier: Floats = np.zeros((0, 0))
        self._at_s: Floats = np.zeros((0, 0))
        self._since: Bools = np.zeros((0, 0), dtype=bool)

    @property
    def bytes_per_s(self) -> Floats:
        """Bandwidths, from row to column; NaN where not measured since the last change."""
        return np.where(self._since, np.fmax(self._newest, self._earlier), math.nan)

    def was_measured_twice(self, link: tuple[int, int]) -> bool:
        """Return whether the link was measured twice since the last change."""
        return bool(self._since[link]) and not math.isnan(self._earlier[link])

    def take(self, groups: tuple[str, ...], links: Links, now_s: float) -> float | None:
        """Take new measurements; return since when the links differ, if all of them do."""
        if self._groups != groups:
            self._groups = groups
            self._newest = np.full_like(links.bytes_per_s, math.nan)
            self._earlier, self._at_s = self._newest.copy(), np.full_like(self._newest, -math.inf)
            self._since = np.zeros(self._newest.shape, dtype=bool)
        at_s = now_s - links.age_s
        new = (links.bytes_per_s > 0) & (at_s > self._at_s + SAME_S)
        measured = links.bytes_per_s[new]
        # Measurements from before the last change are not comparable.
        again = self._since[new]
        times = np.abs(np.log(measured[again] / self._newest[new][again]))
        changed = len(times) > 0 and bool((times > _CHANGED).all())
        if changed:
            self.forget()
        self._earlier[new] = np.where(self._since[new], self._newest[new], math.nan)
        self._newest[new], self._since[new], self._at_s[new] = measured, True, at_s[new]
        return float(at_s[new].min()) if changed else None

    def forget(self) -> None:
        """Record that the links have changed."""
        self._since[:] = False
