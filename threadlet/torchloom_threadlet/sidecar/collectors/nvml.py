"""The worker's GPU, by NVIDIA's management library (NVML)."""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from torchloom_threadlet.sidecar.worker_gpu import nvml_handle, visible_device


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
