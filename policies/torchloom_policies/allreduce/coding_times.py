"""How long each mode takes to code and decode, at the bandwidths where it ran."""

import math
from collections import deque
from statistics import median

import numpy as np

from torchloom_policies.allreduce.modes import NONE, prior_of

_RECENT = 15
_ELSEWHERE = math.log(2.5)
"""Largest distance, as a logarithm, between bandwidths that count as the same."""
_ELSEWHERE_LOG_SD = 0.35
"""Ranks that wait for the wire have free cores to code, so a time measured at another bandwidth
may be off by a third."""


class CodingTimes:
    """Coding seconds per byte of gradient; less certain at another bandwidth."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, float]]] = {}

    def take(self, mode: str, s_per_byte: float, log_bandwidth: float) -> None:
        """Take the coding time of a step."""
        if not self.tried(mode):  # the first step allocates memory and may be slow
            prior = prior_of(mode)
            most = prior.code_ns_per_byte * 1e-9 * math.exp(prior.code_log_sd)
            s_per_byte = min(s_per_byte, most)
        self._seen.setdefault(mode, deque(maxlen=_RECENT)).append((s_per_byte, log_bandwidth))

    def tried(self, mode: str) -> bool:
        """Return whether the mode has run."""
        return mode in self._seen

    def tried_at(self, mode: str, log_bandwidth: float) -> bool:
        """Return whether the mode has run at about this bandwidth."""
        return bool(self._here(mode, log_bandwidth))

    def expected(self, mode: str, log_bandwidth: float) -> tuple[float, float]:
        """Return seconds per byte, and the standard deviation of their logarithm."""
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
