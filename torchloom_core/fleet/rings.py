"""The rings of all declared metrics, as a view reads them."""

from collections.abc import Iterable, Mapping

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.fleet.ring import Past, Ring
from torchloom_core.plugin.arrays import Floats, Ints, frozen, samples_in
from torchloom_core.plugin.needs import PolicyNeed, windows_s


class Rings:
    """One ring a metric, read at one moment: ``now_ns``, for the first ``workers`` rows."""

    def __init__(self, rings: Mapping[str, Ring], tick_s: float, stale_after_s: float) -> None:
        self._rings = rings
        self._tick_s = tick_s
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self.now_ns = 0
        self.workers = 0

    def _ring(self, metric: str) -> Ring:
        if metric not in self._rings:
            raise KeyError(f"{metric}: need a Need of it in needs")
        return self._rings[metric]

    def latest(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, NaN where missing or stale."""
        ring = self._ring(metric)
        fresh = ring.newest_ns[: self.workers] >= self.now_ns - self._stale_ns
        return frozen(np.where(fresh, ring.newest[: self.workers], np.nan))

    def window(self, metric: str, seconds: float) -> Floats:
        """Return ``(workers, samples)``, oldest first, NaN where missing."""
        ring = self._ring(metric)
        samples = samples_in(seconds, self._tick_s)
        if samples > ring.columns:
            raise KeyError(
                f"{metric}: need a window of at most {ring.columns * self._tick_s:g} s, as "
                f"declared, was {seconds:g} s"
            )
        return ring.window(samples)[: self.workers]

    def age_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the last valid sample, inf where there is none."""
        ring = self._ring(metric)
        seen = ring.newest_ns[: self.workers]
        age_s = (self.now_ns - seen) / SECOND_NS
        return frozen(np.where(seen > 0, age_s, np.inf))

    def last_known(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, however old; NaN where there is none."""
        return frozen(self._ring(metric).newest[: self.workers].copy())

    def moved_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value first changed, NaN where it never did."""
        return self._since_s(self._past(metric).moved_ns)

    def rested_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds without a change before the first, NaN without one."""
        past = self._past(metric)
        return frozen(self._since_s(past.began_ns) - self._since_s(past.moved_ns))

    def changed_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value last changed, NaN where it never did."""
        return self._since_s(self._past(metric).changed_ns)

    def _past(self, metric: str) -> Past:
        past = self._ring(metric).past
        if past is None:
            raise KeyError(f"{metric}: need it in a NeedPast in needs")
        return past

    def _since_s(self, stamps: Ints) -> Floats:
        ns = stamps[: self.workers]
        return frozen(np.where(ns > 0, (self.now_ns - ns) / SECOND_NS, np.nan))

    def copy(self, needs: Iterable[PolicyNeed]) -> "Rings":
        """Return rings that stay as they are, for the needs of one predictor."""
        names = windows_s(needs)
        rings = {name: ring.copy() for name, ring in self._rings.items() if name in names}
        copied = Rings(rings, self._tick_s, self._stale_ns / SECOND_NS)
        copied.now_ns, copied.workers = self.now_ns, self.workers
        return copied
