"""The worker's GPU, or its MIG instance: from CUDA's environment, and NVIDIA's library (NVML)."""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchloom_core.floor.xids import is_of_gpu, meaning
from torchloom_threadlet.sidecar.collectors.gpu_readings import Call, Fields, readings

_MOST_FAILURES = 3
"""A reading that fails for a passing reason so many times in a row is left out, too."""
_MOST_XIDS = 64
"""Taken in one sample; a storm of them must not hold the thread."""
_SAME_XID_S = 60.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerGpu:
    """What is known of the worker's GPU; an empty text is unknown.

    ``uuid``: its UUID in lower case, without ``GPU-``, or the UUID's beginning.
    ``instance``: the number of the worker's GPU instance, if MIG partitions the GPU.
    """

    index: str = ""
    uuid: str = ""
    instance: str = ""

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> "WorkerGpu | None":
        """Return the worker's GPU, by NVML where it is installed; None if CUDA shows it none."""
        device = visible_device(environment)
        if device is None:
            return None
        try:
            import pynvml
        except ImportError:
            return cls.named(device)
        try:
            pynvml.nvmlInit()
            return cls._of_nvml(pynvml, device)
        except pynvml.NVMLError:
            return cls.named(device)

    @classmethod
    def named(cls, device: str) -> "WorkerGpu":
        """Return the GPU that an entry of ``CUDA_VISIBLE_DEVICES`` names, without NVML."""
        if device.startswith("MIG-GPU-"):  # MIG-GPU-<UUID>/<GPU instance>/<compute instance>
            uuid, _, instances = device.removeprefix("MIG-GPU-").partition("/")
            return cls(uuid=uuid.lower(), instance=instances.partition("/")[0])
        if device.startswith("MIG-"):  # an instance's UUID: only NVML knows its GPU
            return cls()
        if device.isdecimal():
            return cls(index=device)
        return cls(uuid=device.removeprefix("GPU-").lower())

    @classmethod
    def _of_nvml(cls, nvml: Any, device: str) -> "WorkerGpu":
        handle = nvml_handle(nvml, device)
        instance = ""
        if device.startswith("MIG-"):
            own = nvml.nvmlDeviceGetHandleByUUID(device)
            instance = str(nvml.nvmlDeviceGetGpuInstanceId(own))
        uuid = nvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-").lower()
        return cls(index=cls.named(device).index, uuid=uuid, instance=instance)


def visible_device(environment: Mapping[str, str]) -> str | None:
    """Return the worker's entry of ``CUDA_VISIBLE_DEVICES``, or ``LOCAL_RANK`` where it is not set.

    That is the entry at ``LOCAL_RANK``, or the only one. None if CUDA shows the worker no GPU.
    """
    local_rank = environment.get("LOCAL_RANK", "0")
    entries = environment.get("CUDA_VISIBLE_DEVICES")
    if entries is None:
        return local_rank
    visible = [name.strip() for name in entries.split(",")]
    at = 0 if len(visible) == 1 else int(local_rank)
    device = visible[at] if at < len(visible) else ""
    is_one = device.isdecimal() or device.startswith(("GPU-", "MIG-"))
    return device if is_one else None


def nvml_handle(nvml: Any, device: str) -> Any:
    """Return NVML's handle of a GPU, or of the GPU of a MIG instance."""
    if device.startswith("MIG-"):
        instance = nvml.nvmlDeviceGetHandleByUUID(device)
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
    if device.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(device)
    return nvml.nvmlDeviceGetHandleByIndex(int(device))


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
            return None
        device = visible_device(environment)
        if device is None:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml, device)
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            return None
        except pynvml.NVMLError as error:
            _logger.warning("GPU %s is not measured: NVML: %s", device, error)
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
            _logger.warning("%s: metrics left out: %s", self._name, text)

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
        nvml = self._nvml
        try:
            for _ in range(_MOST_XIDS):
                event = nvml.nvmlEventSetWait_v2(events, 0)
                if self._instance in (None, event.gpuInstanceId) or event.gpuInstanceId == _NO_ID:
                    self._take_xid(event.eventData)
        except nvml.NVMLError_Timeout:
            self._failures.pop("gpu_xid_total", None)
        except nvml.NVMLError as error:
            if self._fail("gpu_xid_total", error):
                self._events = None

    def _take_xid(self, xid: int) -> None:
        self._xids += 1
        self._last_xid = xid
        now_s = time.monotonic()
        is_new = now_s - self._xid_at_s.get(xid, -_SAME_XID_S) >= _SAME_XID_S
        self._xid_at_s[xid] = now_s
        if is_new and is_of_gpu(xid):
            self._report(f"Xid {xid}: {meaning(xid, '').kind.replace('_', ' ')}", xid=xid)


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
