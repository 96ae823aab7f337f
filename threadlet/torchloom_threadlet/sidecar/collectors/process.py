"""The trainer's process and its host, by psutil."""

import contextlib
import logging
from typing import Any

_logger = logging.getLogger(__name__)


class ProcessCollector:
    """CPU and memory of one process and its host."""

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._process = psutil.Process(pid)
        # The first call only sets the start of psutil's interval.
        self._process.cpu_percent()
        psutil.cpu_percent()

    @classmethod
    def find(cls, pid: int, node: str) -> "ProcessCollector | None":
        """Return the collector, or None where psutil is not installed or the process has ended."""
        try:
            import psutil
        except ImportError:
            _logger.warning("the trainer's process is not measured: psutil is not installed")
            return None
        try:
            return cls(psutil, pid)
        except psutil.NoSuchProcess:
            return None

    def collect(self) -> dict[str, float]:
        """Return the metrics now; nothing once the process has ended."""
        memory = self._psutil.virtual_memory()
        metrics = {
            "host_cpu_percent": self._psutil.cpu_percent(),
            "host_mem_available_bytes": float(memory.available),
            "host_mem_percent": memory.percent,
        }
        with contextlib.suppress(self._psutil.NoSuchProcess, self._psutil.AccessDenied):
            metrics["cpu_percent"] = self._process.cpu_percent()
            metrics["rss_bytes"] = float(self._process.memory_info().rss)
        return metrics
