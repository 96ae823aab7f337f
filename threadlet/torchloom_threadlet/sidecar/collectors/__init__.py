"""What a sidecar measures beside the trainer: one collector per module.

A collector is an object whose ``collect()`` returns metric name to value. It is made and called
in a thread of its own, so that a hanging driver delays no heartbeat. A collector that fails is
dropped with one log line, and its metrics go missing, which policies can see.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from torchloom_threadlet.sidecar.collectors.nvml import NvmlCollector
from torchloom_threadlet.sidecar.collectors.process import ProcessCollector
from torchloom_threadlet.sidecar.collectors.prometheus import TextfileCollector

_FRESH_INTERVALS = 3

_logger = logging.getLogger(__name__)


class Collector(Protocol):
    """A source of metrics."""

    def collect(self) -> dict[str, float]:
        """Return metric name to value, now."""


class Collection:
    """Runs every collector once per interval."""

    def __init__(self, pid: int, node: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._makers: dict[str, Callable[[], Collector | None]] = {
            "process": lambda: ProcessCollector.find(pid),
            "nvml": NvmlCollector.find,
            "textfile": lambda: TextfileCollector.find(node),
        }
        self._latest: dict[str, tuple[float, dict[str, float]]] = {}

    def gauges(self) -> dict[str, float]:
        """Return each collector's last values, unless they are too old."""
        oldest = time.monotonic() - _FRESH_INTERVALS * self._interval_s
        return {
            name: value
            for at, values in self._latest.values()
            if at >= oldest
            for name, value in values.items()
        }

    async def run(self) -> None:
        """Collect until every collector has failed or found nothing to collect."""
        await asyncio.gather(*(self._run_one(name) for name in self._makers))

    async def _run_one(self, name: str) -> None:
        try:
            collector = await asyncio.to_thread(self._makers[name])
            while collector is not None:
                values = await asyncio.to_thread(collector.collect)
                self._latest[name] = time.monotonic(), values
                await asyncio.sleep(self._interval_s)
        except Exception as error:  # noqa: BLE001 - drivers and libraries raise what they like
            _logger.warning("collector %s is dropped: %s: %s", name, type(error).__name__, error)
