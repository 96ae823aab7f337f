"""The worker's GPU, or its MIG instance: from CUDA's environment, and NVIDIA's library (NVML)."""

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
    """Temperature, power, utilization, memory, error counters and XIDs of one GPU.

    A reading that the GPU does not support is left out. ``gpu_xid_total`` counts
    the XIDs since the collector began; ``gpu_xid_last`` is the newest one's number.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._unsupported = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound)
        self._xids = 0
        self._last_xid = 0
        self._events = self._listen(handle)

        def ecc(kind: int) -> float:
            return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

        self._readings: dict[str, Callable[[], float]] = {
            "gpu_temp_celsius": lambda: float(
                nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            "gpu_power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "gpu_util_ratio": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "gpu_mem_used_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "gpu_ecc_corrected_total": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "gpu_ecc_uncorrected_total": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        }

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
            handle = nvml_handle(pynvml, device)
        except pynvml.NVMLError:
            return None
        return cls(pynvml, handle)

    def collect(self) -> dict[str, float]:
        """Return the metrics now."""
        metrics = {}
        for name, read in list(self._readings.items()):
            try:
                metrics[name] = read()
            except self._unsupported:
                del self._readings[name]
        if self._events is not None:
            self._take(self._events)
            metrics["gpu_xid_total"] = float(self._xids)
            if self._xids:
                metrics["gpu_xid_last"] = float(self._last_xid)
        return metrics

    def _listen(self, handle: Any) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except self._unsupported:
            return None
        return events

    def _take(self, events: Any) -> None:
        """Take the XIDs since the last call."""
        with contextlib.suppress(self._nvml.NVMLError_Timeout):
            while True:
                event = self._nvml.nvmlEventSetWait_v2(events, 0)
                self._xids += 1
                self._last_xid = event.eventData
