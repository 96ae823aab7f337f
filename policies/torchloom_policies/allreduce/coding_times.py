"""How long each mode takes to code and decode, at the bandwidths where it ran."""

import math
from collections import deque
from statistics import median

import numpy as np

from torchloom_policies.allreduce.modes import NONE, prior_of

_RECENT = 15
_ELSEWHERE = math.log(2.5)
"""A mode has not run at a bandwidth that is further away."""
_ELSEWHERE_LOG_SD = 0.35
"""Where ranks wait for the wire their cores are free to code, so what it took at another bandwidth
may be off by a third."""


class CodingTimes:
    """Seconds a byte of gradient; what was measured at another bandwidth is less sure."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float]]] = {}

    def take(self, mode: str, s_per_byte: float, log_bandwidth: float) -> None:
        """Take a step's."""
        if not self.tried(mode):  # its first step finds no memory at hand: the next may be short
            prior = prior_of(mode)
            most = prior.code_ns_per_byte * 1e-9 * math.exp(prior.code_log_sd)
            s_per_byte = min(s_per_byte, most)
        self._seen.setdefault(mode, deque(maxlen=_RECENT)).append((s_per_byte, log_bandwidth))

    def tried(self, mode: str) -> bool:
        """Say whether the mode has run."""
        return mode in self._seen

    def tried_at(self, mode: str, log_bandwidth: float) -> bool:
        """Say whether it has run at about this bandwidth."""
        return bool(self._here(mode, log_bandwidth))

    def expected(self, mode: str, log_bandwidth: float) -> tuple[float, float]:
        """Return seconds a byte, and the standard deviation of their logarithm."""
        prior = prior_of(mode)
        if not self.tried(mode):
            return prior.code_ns_per_byte * 1e-9, prior.code_log_sd
        here = self._here(mode, log_bandwidth)
        seen = here or [each for each, _ in self._seen[mode]]
        middle = median(seen)
        if middle <= 0 or mode == NONE:
            return max(0.0, middle), 0.0
        off = float(np.median(np.abs(np.array(seen) / middle - 1.0)))
        log_sd = max(0.05, min(1.85 * off, prior.code_log_sd)) / math.sqrt(len(seen))
        return middle, log_sd if here else math.hypot(log_sd, _ELSEWHERE_LOG_SD)

    def _here(self, mode: str, log_bandwidth: float) -> list[float]:
        seen = self._seen.get(mode, ())
        return [each for each, at in seen if abs(at - log_bandwidth) <= _ELSEWHERE]
