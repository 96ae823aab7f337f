"""What the training thread leaves behind at each step, and how the link's thread picks it up."""

import logging
import math
import time
from collections import deque
from typing import Any

_CAPACITY = 4096
_logger = logging.getLogger(__name__)

Sample = tuple[int, int, dict[str, Any]]
"""Serial number, monotonic time in ns, metrics."""


class Samples:
    """A bounded deque of samples: the oldest are dropped when nobody takes them."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self.waiting: deque[Sample] = deque(maxlen=capacity)
        self.dropped = 0
        self.newest_ns = 0
        self._serial = 0
        self._unix_offset_ns = time.time_ns() - time.monotonic_ns()
        self._complained: set[str] = set()

    def take(self, entered_ns: int) -> list[tuple[int, dict[str, float]]]:
        """Return ``(Unix time in ns, metrics)`` of each waiting sample, with ``step_time_s``.

        A step that began before ``entered_ns``, the time of the last change of state, took
        in a pause or a wait, so its duration says nothing and is left out.
        """
        rows = []
        for _ in range(len(self.waiting)):
            serial, at_ns, metrics = self.waiting.popleft()
            self.dropped += serial - self._serial - 1
            follows = serial == self._serial + 1 and self.newest_ns > entered_ns
            self._serial = serial
            row = {}
            for name, value in metrics.items():
                number = self._number(name, value)
                if number is not None:
                    row[name] = number
            if follows:
                row["step_time_s"] = (at_ns - self.newest_ns) / 1e9
            self.newest_ns = at_ns
            rows.append((at_ns + self._unix_offset_ns, row))
        return rows

    def _number(self, name: str, value: Any) -> float | None:
        try:
            number = float(value)
        except Exception as error:  # noqa: BLE001 - a tensor of the user's may raise anything
            if name not in self._complained:
                self._complained.add(name)
                _logger.warning("metric %s: need a number, was %.80r (%s)", name, value, error)
            return None
        return None if math.isnan(number) else number


def whole(step: Any) -> int:
    """Return the user's step as an int, -1 where it is none."""
    try:
        return int(step)
    except Exception:  # noqa: BLE001 - whatever the user passed, a step must not raise
        return -1
