"""Metrics and faults of the worker's GPU, or of its MIG instance, by NVIDIA's library (NVML)."""

import contextlib
import ctypes
import logging
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torchloom_core.floor.xids import is_of_gpu, meaning
from torchloom_threadlet.sidecar.collectors.gpu_readings import Call, Fields, readings
from torchloom_threadlet.sidecar.collectors.worker_gpu import (
    UnknownGpuError,
    nvml_handle,
    visible_device,
)

_MOST_FAILURES = 3
"""A reading that fails for a passing reason so many times in a row is left out, too."""
_MOST_XIDS = 64
"""Taken in one sample; a storm of them must not hold the thread."""
_MOST_REPORTED = 4
"""Of those, reported one by one; one more report counts the others."""
_SAME_XID_S = 60.0

_logger = logging.getLogger(__name__)
_logged: set[str] = set()


class NvmlCollector:
    """Measures one GPU by NVML, and reports its faults.

    What the GPU, the driver, the container or MIG does not show is left out: one log line names
    it, and it is not read again. On a GPU with MIG, memory is that of the worker's instance, and
    everything else that of the whole GPU.

    ``gpu_xid_total`` counts the Xids since the collector began, without those that belong to
    another MIG instance; ``gpu_xid_last`` is the newest one's number.
    """

    def __init__(self, nvml: Any, device: str) -> None:
        self._nvml = nvml
        gpu = nvml_handle(nvml, device)
        own = nvml.nvmlDeviceGetHandleByUUID(device) if device.startswith("MIG-") else None
        self._instance = None if own is None else nvml.nvmlDeviceGetGpuInstanceId(own)
        self._name = f"GPU {device}"
        if device.startswith("GPU-"):
            with contextlib.suppress(nvml.NVMLError):
                self._name = f"GPU {nvml.nvmlDeviceGetIndex(gpu)}"
        self._readings: list[Call | Fields] = readings(nvml, gpu, own or gpu)
        self._failures: dict[str, int] = {}
        self._left_out: dict[str, list[str]] = defaultdict(list)
        self._faults: list[dict[str, str | int]] = []
        self._lost = ""
        self._last: dict[str, float] = {}
        self._xids = self._last_xid = 0
        self._xid_at_s: dict[int, float] = {}
        self._events = self._listen(gpu)

    @classmethod
    def find(
        cls, pid: int, node: str, environment: Mapping[str, str] = os.environ
    ) -> "NvmlCollector | None":
        """Return the collector of this worker's GPU, or None where there is none."""
        try:
            import pynvml
        except ImportError:
            if _has_driver():
                _log_once("GPUs are not measured: nvidia-ml-py is not installed")
            return None
        try:
            pynvml.nvmlInit()
            device = visible_device(environment, pynvml.nvmlDeviceGetCount())
            return None if device is None else cls(pynvml, device)
        except UnknownGpuError as error:
            until = "the loom gets a metric, a model or an optimizer on one"
            _log_once(f"no GPU is measured until {until}: {error}")
            return None
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            return None
        except pynvml.NVMLError as error:
            _log_once(f"the worker's GPU is not measured: NVML: {error}")
            return None

    def collect(self) -> dict[str, float]:
        """Return the metrics now; of a lost GPU only that it is lost."""
        metrics: dict[str, float] = {}
        for reading in self._readings if not self._lost else ():
            for name, value in reading.read(self._nvml.NVMLError).items():
                if isinstance(value, float):
                    metrics[name] = value
                    self._failures.pop(name, None)
                else:
                    self._fail(name, value)
        if self._events is not None and not self._lost:
            self._take_xids(self._events)
        if self._left_out:
            self._log_left_out()
        if self._lost:
            return {"gpu_lost": 1.0}
        self._compare(metrics)
        if self._events is not None:
            metrics["gpu_xid_total"] = float(self._xids)
            if self._xids:
                metrics["gpu_xid_last"] = float(self._last_xid)
        return metrics | {"gpu_lost": 0.0}

    def faults(self) -> list[dict[str, str | int]]:
        """Return the faults since the last call, as fields of a note."""
        faults, self._faults = self._faults, []
        return faults

    def _fail(self, name: str, error: Exception) -> bool:
        """Take note of a failure; return whether this is not to be read again."""
        nvml, code = self._nvml, getattr(error, "value", None)
        if code in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            self._lose(str(error))
            return True
        passing = (
            nvml.NVML_ERROR_TIMEOUT,
            nvml.NVML_ERROR_IN_USE,
            nvml.NVML_ERROR_NO_DATA,
            nvml.NVML_ERROR_NOT_READY,
            nvml.NVML_ERROR_UNKNOWN,
        )
        self._failures[name] = self._failures.get(name, 0) + 1
        if code in passing and self._failures[name] < _MOST_FAILURES:
            return False
        self._left_out[_reason(error)].append(name)
        for reading in self._readings:
            reading.drop(name)
        self._readings = [one for one in self._readings if one.metrics]
        return True

    def _lose(self, why: str) -> None:
        if not self._lost:
            self._lost = why
            self._report(why)

    def _report(self, what: str, **more: int) -> None:
        self._faults.append({"gpu": self._name, "what": what, **more})
        _logger.warning("%s: %s", self._name, what)

    def _log_left_out(self) -> None:
        text = "; ".join(f"{', '.join(names)} ({why})" for why, names in self._left_out.items())
        self._left_out.clear()
        if not self._lost:
            _log_once(f"{self._name}: metrics left out: {text}")

    def _compare(self, metrics: Mapping[str, float]) -> None:
        """Report what has changed for the worse since the last sample."""
        for name, what in _WORSE.items():
            if name in metrics:
                grown = int(metrics[name] - self._last.get(name, metrics[name]))
                if grown > 0:
                    self._report(what.format(grown))
                self._last[name] = metrics[name]

    def _listen(self, gpu: Any) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            self._left_out[_reason(error)].append("gpu_xid_total")
            return None
        return events

    def _take_xids(self, events: Any) -> None:
        """Take the Xids since the last call."""
        nvml, new = self._nvml, list[int]()
        try:
            for _ in range(_MOST_XIDS):
                event = nvml.nvmlEventSetWait_v2(events, 0)
                if self._instance in (None, event.gpuInstanceId) or event.gpuInstanceId == _NO_ID:
                    new += self._count(event.eventData)
        except nvml.NVMLError_Timeout:
            self._failures.pop("gpu_xid_total", None)
        except nvml.NVMLError as error:
            if self._fail("gpu_xid_total", error):
                self._events = None
        for xid in new[:_MOST_REPORTED]:
            self._report(f"Xid {xid}: {meaning(xid, '').kind.replace('_', ' ')}", xid=xid)
        if len(new) > _MOST_REPORTED:
            self._report(f"{len(new) - _MOST_REPORTED} other Xids at the same time")

    def _count(self, xid: int) -> list[int]:
        """Count an Xid; return it if it is to be reported."""
        self._xids += 1
        self._last_xid = xid
        now_s = time.monotonic()
        recent = {each: at for each, at in self._xid_at_s.items() if now_s - at < _SAME_XID_S}
        self._xid_at_s = recent | {xid: now_s}
        return [xid] if xid not in recent and is_of_gpu(xid) else []


_NO_ID = 0xFFFFFFFF
"""The instance of an event that concerns the whole GPU."""

_WORSE = {
    "gpu_ecc_uncorrected_total": "{} uncorrected ECC errors",
    "gpu_row_remap_failed": "row remapping failed",
}


def _reason(error: Exception) -> str:
    if isinstance(error, AttributeError):
        return "needs a newer nvidia-ml-py"
    return str(error).rstrip(".").lower()


def _has_driver() -> bool:
    """Return whether NVIDIA's driver is on this host."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return os.path.exists("/dev/nvidia0")
    return True


def _log_once(line: str) -> None:
    """Log what a later collector of this process finds as well, such as that of the same GPU."""
    if line not in _logged:
        _logged.add(line)
        _logger.warning("%s", line)
