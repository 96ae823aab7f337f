"""The worker's GPU, or its MIG instance: from CUDA's environment, and NVML."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WorkerGpu:
    """What is known of the worker's GPU; an empty text is unknown.

    ``index``: its index on the host.
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
