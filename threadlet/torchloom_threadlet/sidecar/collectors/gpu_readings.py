"""What is read of a GPU by NVML: the metrics of each call, in their units."""

from collections.abc import Callable, Sequence
from typing import Any

_ALL_LINKS = 0xFFFFFFFF

_FIELDS: dict[str, tuple[str, int, float]] = {
    "gpu_mem_temp_celsius": ("MEMORY_TEMP", 0, 1),
    "gpu_pcie_replays_total": ("PCIE_REPLAY_COUNTER", 0, 1),
    "gpu_nvlink_tx_bytes_total": ("NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS, 1024),
    "gpu_nvlink_rx_bytes_total": ("NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS, 1024),
    "gpu_nvlink_crc_flit_errors_total": ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 0, 1),
    "gpu_nvlink_crc_data_errors_total": ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 0, 1),
    "gpu_nvlink_replays_total": ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", 0, 1),
    "gpu_nvlink_recoveries_total": ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 0, 1),
    "gpu_nvlink_ecc_errors_total": ("NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", 0, 1),
    "gpu_nvlink_rx_errors_total": ("NVLINK_COUNT_RCV_ERRORS", _ALL_LINKS, 1),
    "gpu_nvlink_link_recoveries_total": ("NVLINK_COUNT_LINK_RECOVERY_EVENTS", _ALL_LINKS, 1),
    "gpu_pages_retired_corrected_total": ("RETIRED_SBE", 0, 1),
    "gpu_pages_retired_uncorrected_total": ("RETIRED_DBE", 0, 1),
    "gpu_page_retirement_pending": ("RETIRED_PENDING", 0, 1),
}
"""Metric to the name after ``NVML_FI_DEV_``, the scope, and the unit of a field.

The two before the pages are those of NVLink 5, the five before them of earlier links.
"""

_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of a field's value, by its type."""

_THROTTLES = {
    "gpu_throttle_clocks_setting": 0x2,
    "gpu_throttle_sw_power_cap": 0x4,
    "gpu_throttle_hw_slowdown": 0x8,
    "gpu_throttle_sync_boost": 0x10,
    "gpu_throttle_sw_thermal": 0x20,
    "gpu_throttle_hw_thermal": 0x40,
    "gpu_throttle_hw_power_brake": 0x80,
}
"""Bits of ``nvmlClocksEventReason``, but for those of an idle GPU and of a display."""

_PASSED_ON = (AttributeError,)
"""What a name that an older nvidia-ml-py lacks raises."""


class Call:
    """One call, which gives the values of these metrics or fails for all of them."""

    def __init__(self, metrics: str, read: Callable[[], Sequence[float] | float]) -> None:
        self.metrics = tuple(metrics.split())
        self._read = read

    def read(self, failure: type[Exception]) -> dict[str, float | Exception]:
        """Return each metric's value, or why it has none; ``failure`` is NVML's exception."""
        try:
            values = self._read()
        except (failure, *_PASSED_ON) as error:
            return dict.fromkeys(self.metrics, error)
        if not isinstance(values, Sequence):
            values = (values,)
        return dict(zip(self.metrics, map(float, values), strict=True))

    def drop(self, metric: str) -> None:
        """Read no longer, if this is one of the metrics."""
        if metric in self.metrics:
            self.metrics = ()


class Fields:
    """The fields of a GPU: one call, in which each may fail."""

    def __init__(self, nvml: Any, gpu: Any) -> None:
        self._nvml, self._gpu = nvml, gpu
        self.metrics = tuple(_FIELDS)

    def read(self, failure: type[Exception]) -> dict[str, float | Exception]:
        """Return each metric's value, or why it has none; ``failure`` is NVML's exception."""
        nvml, found = self._nvml, dict[str, float | Exception]()
        asked, units = [], []
        for metric in self.metrics:
            name, scope, unit = _FIELDS[metric]
            try:
                asked.append((getattr(nvml, f"NVML_FI_DEV_{name}"), scope))
                units.append((metric, unit))
            except AttributeError as error:
                found[metric] = error
        try:
            values = nvml.nvmlDeviceGetFieldValues(self._gpu, asked)
        except (failure, *_PASSED_ON) as error:
            return found | dict.fromkeys((metric for metric, _ in units), error)
        for (metric, unit), field in zip(units, values, strict=True):
            if field.nvmlReturn == nvml.NVML_SUCCESS:
                value = getattr(field.value, _VALUES[field.valueType])
                found[metric] = float(value) * unit
            else:
                found[metric] = failure(field.nvmlReturn)
        return found

    def drop(self, metric: str) -> None:
        """Read this one no longer."""
        self.metrics = tuple(name for name in self.metrics if name != metric)


def readings(nvml: Any, gpu: Any, memory: Any) -> list[Call | Fields]:
    """Return what is read of a GPU; ``memory`` is the handle of its memory, or of a MIG instance's.

    PCIe throughput is measured by NVML over 20 ms each, in which the call waits.
    """

    def used() -> tuple[float, float]:
        info = nvml.nvmlDeviceGetMemoryInfo(memory)
        return info.used, info.total

    def utilization() -> tuple[float, float]:
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        return rates.gpu / 100, rates.memory / 100

    def throttles() -> tuple[float, ...]:
        try:
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
        except nvml.NVMLError_FunctionNotFound:  # a driver before 535
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
        return tuple(float(bool(bits & bit)) for bit in _THROTTLES.values())

    def ecc(kind: str, since: str) -> Call:
        counter = getattr(nvml, f"NVML_{since}_ECC")
        error_type = getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind.upper()}")
        lifetime = "lifetime_" if since == "AGGREGATE" else ""
        return Call(
            f"gpu_ecc_{lifetime}{kind}_total",
            lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu, error_type, counter),
        )

    def clock(of: str) -> float:
        return float(nvml.nvmlDeviceGetClockInfo(gpu, getattr(nvml, f"NVML_CLOCK_{of}"))) * 1e6

    def limit(of: str) -> Any:
        threshold = getattr(nvml, f"NVML_TEMPERATURE_THRESHOLD_{of}")
        return nvml.nvmlDeviceGetTemperatureThreshold(gpu, threshold)

    def pcie(of: str) -> float:
        counter = getattr(nvml, f"NVML_PCIE_UTIL_{of}_BYTES")
        return float(nvml.nvmlDeviceGetPcieThroughput(gpu, counter)) * 1000

    return [
        Call(
            "gpu_temp_celsius",
            lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        ),
        Call("gpu_temp_slowdown_celsius", lambda: limit("SLOWDOWN")),
        Call("gpu_temp_shutdown_celsius", lambda: limit("SHUTDOWN")),
        Call("gpu_temp_margin_celsius", lambda: nvml.nvmlDeviceGetMarginTemperature(gpu)),
        Call("gpu_power_watts", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
        Call("gpu_power_limit_watts", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000),
        Call("gpu_util_ratio gpu_mem_util_ratio", utilization),
        Call("gpu_mem_used_bytes gpu_mem_total_bytes", used),
        Call("gpu_sm_clock_hz", lambda: clock("SM")),
        Call("gpu_mem_clock_hz", lambda: clock("MEM")),
        Call(" ".join(_THROTTLES), throttles),
        *(
            ecc(kind, since)
            for since in ("VOLATILE", "AGGREGATE")
            for kind in ("corrected", "uncorrected")
        ),
        Call(
            "gpu_rows_remapped_corrected_total gpu_rows_remapped_uncorrected_total "
            "gpu_row_remap_pending gpu_row_remap_failed",
            lambda: nvml.nvmlDeviceGetRemappedRows(gpu),
        ),
        Call("gpu_pcie_tx_bytes_per_s", lambda: pcie("TX")),
        Call("gpu_pcie_rx_bytes_per_s", lambda: pcie("RX")),
        Fields(nvml, gpu),
    ]
