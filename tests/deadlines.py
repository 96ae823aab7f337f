"""Deadlines of tests, longer on a slow or busy machine.

A deadline only detects failures, so it is generous, and measures no speed.
"""

import os
import time

_VARIABLE = "TORCHLOOM_TEST_SLOWNESS"  # measured once for all processes of a session
_COUNT = 2_000_000
_QUIET_S = 0.1  # counting so far takes less on a quiet machine of today


def _slowness() -> float:
    """Return how many times longer things take here than on a quiet machine; at least 1."""
    began = time.perf_counter()
    for _ in range(_COUNT):
        pass
    counting = (time.perf_counter() - began) / _QUIET_S
    return max(1.0, counting, os.getloadavg()[0] / (os.cpu_count() or 1))


SLOWNESS = float(os.environ.setdefault(_VARIABLE, f"{_slowness():.1f}"))
DEADLINE_S = 100.0 * SLOWNESS
"""For one wait."""

TEST_S = 400.0 * SLOWNESS
"""For a whole test."""
