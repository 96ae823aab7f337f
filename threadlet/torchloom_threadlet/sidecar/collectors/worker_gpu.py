"""Which GPU is the worker's, by CUDA's environment and NVIDIA's library (NVML).

Once the trainer has a tensor on a GPU, the sidecar has that GPU's UUID in its environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
_MOST_DIGITS = 9


class UnknownGpuError(LookupError):
    """Nothing says which GPU is the worker's, or what says so is invalid."""


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
        """Return the worker's GPU, by NVML where it is installed; None if CUDA shows it none.

        Raises UnknownGpuError.
        """
        try:
            import pynvml
        except ImportError:
            return cls._named(visible_device(environment))
        try:
            pynvml.nvmlInit()
            device = visible_device(environment, pynvml.nvmlDeviceGetCount())
            return None if device is None else cls._of_nvml(pynvml, device)
        except pynvml.NVMLError:
            return cls._named(visible_device(environment))

    @classmethod
    def _named(cls, device: str | None) -> "WorkerGpu | None":
        """Return the GPU that an entry of ``CUDA_VISIBLE_DEVICES`` names, without NVML."""
        if device is None:
            return None
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
        return cls(index=device if device.isdecimal() else "", uuid=uuid, instance=instance)


def visible_device(environment: Mapping[str, str], count: int | None = None) -> str | None:
    """Return the worker's GPU as ``CUDA_VISIBLE_DEVICES`` names it; None if CUDA shows it none.

    That is the only entry, else the one at the local rank; without entries, of all GPUs.
    ``count``: the number of GPUs that NVML shows, None if unknown.
    Raises UnknownGpuError.
    """
    entries = environment.get(VISIBLE)
    visible, shown = [], count
    if entries is not None:  # CUDA ignores what follows an invalid entry
        visible = list(takewhile(_is_device, map(str.strip, entries.split(","))))
        shown = len(visible)
    if shown == 0:
        return None
    at = 0 if shown == 1 else _local_rank(environment)
    if shown is not None and at >= shown:
        raise UnknownGpuError(f"need a local rank below {shown}, was {at}")
    device = visible[at] if visible else str(at)
    if count is not None and device.isdecimal() and not _number(device) < count:
        raise UnknownGpuError(f"{VISIBLE}: need a number below {count}, was {device[:20]}")
    return device


def nvml_handle(nvml: Any, device: str) -> Any:
    """Return NVML's handle of a GPU, or of the GPU of a MIG instance."""
    if device.startswith("MIG-"):
        instance = nvml.nvmlDeviceGetHandleByUUID(device)
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
    if device.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(device)
    return nvml.nvmlDeviceGetHandleByIndex(int(device))


def _is_device(entry: str) -> bool:
    return entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))


def _local_rank(environment: Mapping[str, str]) -> int:
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        text = environment.get(name)
        # A single task of srun has the ID 0, too, and may start one process for each GPU.
        if text is None or (name, text) == ("SLURM_LOCALID", "0"):
            continue
        if _number(text) == float("inf"):
            raise UnknownGpuError(f"{name}: need a whole number from 0 on, was {text[:20]!r}")
        return int(text)
    raise UnknownGpuError("there may be several, and LOCAL_RANK is not set")


def _number(text: str) -> float:
    """Return a whole number, infinity for what is none or too large for a GPU's."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else float("inf")
