"""What probes have told of the links among a run's groups, since these links became others."""

import math

import numpy as np

from torchloom_core.plugin import Floats, Links

_CHANGED = math.log(1.5)
SAME_S = 1e-3
"""What was measured within so long is the same measurement."""

Bools = np.ndarray[tuple[int, int], np.dtype[np.bool_]]


class ProbedLinks:
    """The last two measurements of each link.

    Whatever is in a probe's way makes it slower, and nothing quicker: of two the quicker counts.
    """

    def __init__(self) -> None:
        self._groups: tuple[str, ...] = ()
        self._told: Floats = np.zeros((0, 0))
        self._earlier: Floats = np.zeros((0, 0))
        self._at_s: Floats = np.zeros((0, 0))
        self._since: Bools = np.zeros((0, 0), dtype=bool)

    @property
    def bytes_per_s(self) -> Floats:
        """Bandwidths, from whom to whom; NaN where nothing was measured since."""
        return np.where(self._since, np.fmax(self._told, self._earlier), math.nan)

    def was_asked_twice(self, link: tuple[int, int]) -> bool:
        """Say whether the link was measured twice since."""
        return bool(self._since[link]) and not math.isnan(self._earlier[link])

    def take(self, groups: tuple[str, ...], links: Links, now_s: float) -> float | None:
        """Take what was measured anew; say since when, if all of it is another than before."""
        if self._groups != groups:
            self._groups = groups
            self._told = np.full_like(links.bytes_per_s, math.nan)
            self._earlier, self._at_s = self._told.copy(), np.full_like(self._told, -math.inf)
            self._since = np.zeros(self._told.shape, dtype=bool)
        at_s = now_s - links.age_s
        new = (links.bytes_per_s > 0) & (at_s > self._at_s + SAME_S)
        told = links.bytes_per_s[new]
        # What was measured before the last change is another than now, and says nothing.
        again = self._since[new]
        times = np.abs(np.log(told[again] / self._told[new][again]))
        changed = len(times) > 0 and bool((times > _CHANGED).all())
        if changed:
            self.forget()
        self._earlier[new] = np.where(self._since[new], self._told[new], math.nan)
        self._told[new], self._since[new], self._at_s[new] = told, True, at_s[new]
        return float(at_s[new].min()) if changed else None

    def forget(self) -> None:
        """Note that the links are others now."""
        self._since[:] = False
