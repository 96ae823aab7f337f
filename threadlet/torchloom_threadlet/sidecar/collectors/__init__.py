"""What a sidecar measures beside the trainer, by collectors that any package can bring.

A collector is an entry point in the group ``torchloom.collectors``: a function
``find(pid, node)`` that returns None where there is nothing to measure, else an object whose
``collect()`` returns metric name to value. Both are called in a thread, so that a hanging driver
delays no heartbeat. A collector may also have ``faults()``, called after ``collect()``: it returns
the faults since its last call, each as the fields of a note of the kind ``fault``. A collector that
fails is dropped with one log line, and its metrics go missing, which policies can see.

A collector of a GPU measures the one that ``CUDA_VISIBLE_DEVICES`` names. Once the trainer has a
tensor on a GPU, that is the UUID of this GPU, and all collectors are found anew.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    distribution,
)
from typing import Any, Protocol

from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.suggest import nearest
from torchloom_core.wire.messages import FieldValue
from torchloom_threadlet.cleaning import MetricNames, error_line, fields
from torchloom_threadlet.sidecar.collectors.worker_gpu import VISIBLE

_GROUP = "torchloom.collectors"
_OWN = "process,nvml,textfile"
_FRESH_INTERVALS = 3

_logger = logging.getLogger(__name__)


class Collector(Protocol):
    """A source of metrics."""

    def collect(self) -> dict[str, float]:
        """Return metric name to value, now."""


class Collection:
    """Runs the collectors named in ``TORCHLOOM_COLLECTORS`` once per interval.

    ``on_fault`` is called in the event loop with the fields of each fault.
    """

    def __init__(
        self,
        pid: int,
        node: str,
        interval_s: float,
        on_fault: Callable[[Mapping[str, FieldValue]], None],
    ) -> None:
        self._on_fault = on_fault
        self._worker = pid, node
        self._interval_s = interval_s
        self._gpu_is_known = asyncio.Event()
        self._names = MetricNames()
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

    def use_gpu(self, uuid: str) -> None:
        """Measure the trainer's own GPU from now on, as NVML names it; the first one counts."""
        if not self._gpu_is_known.is_set():
            os.environ[VISIBLE] = uuid
            self._gpu_is_known.set()

    async def run(self) -> None:
        """Collect until every collector has failed."""
        names = os.environ.get("TORCHLOOM_COLLECTORS", _OWN).split(",")
        await asyncio.gather(*map(self._run_one, filter(None, map(str.strip, names))))

    async def _run_one(self, name: str) -> None:
        try:
            if not self._gpu_is_known.is_set():
                await self._collect_while(name, lambda: not self._gpu_is_known.is_set())
                self._latest.pop(name, None)
                await self._gpu_is_known.wait()
            await self._collect_while(name, lambda: True)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the code of anyone's package
            _logger.warning("collector %s is dropped: %s", name, plain_line(error_line(error)))

    async def _collect_while(self, name: str, is_valid: Callable[[], bool]) -> None:
        collector = await asyncio.to_thread(self._find, name)
        while collector is not None and is_valid():
            values = await asyncio.to_thread(self._collect, collector)
            self._latest[name] = time.monotonic(), values
            for fault in getattr(collector, "faults", list)():
                self._on_fault(fields(fault))
            await asyncio.sleep(self._interval_s)

    def _find(self, name: str) -> Collector | None:
        collector: Collector | None = _entry_point(name).load()(*self._worker)
        return collector

    def _collect(self, collector: Collector) -> dict[str, float]:
        values: dict[Any, Any] = collector.collect()
        return {self._names.clean(name): float(value) for name, value in values.items()}


def _entry_point(name: str) -> EntryPoint:
    """Return the entry point of a collector; torchLoom's own are found without a long search."""
    own = EntryPoints()
    with contextlib.suppress(PackageNotFoundError):
        own = distribution("torchloom").entry_points.select(group=_GROUP, name=name)
    for point in own:
        return point
    found = {point.name: point for point in entry_points(_GROUP)}
    if name in found:
        return found[name]
    installed = nearest(name, found)
    raise LookupError(f"it is not installed{installed}")
