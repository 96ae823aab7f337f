"""What a measurement needs of a device: its events, and page-locked memory on the host."""

from typing import Any, Protocol

import torch


class Device(Protocol):
    """A device whose work is asynchronous; tests have their own."""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured as a graph: record nothing."""

    def event(self) -> Any:
        """Return a new event that is recorded nowhere yet."""

    def record(self, event: Any) -> None:
        """Record an event in the calling thread's current stream, once more if it was before."""

    def is_over(self, event: Any) -> bool:
        """Return whether all work before an event is over; wait for nothing."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two events that are over."""

    def pinned(self, dtype: Any) -> Any:
        """Return a number in page-locked memory of the host."""

    def copy(self, value: Any, pinned: Any) -> None:
        """Copy a tensor with one element in the current stream; wait for nothing."""


class CudaDevice:
    """One GPU, of CUDA or ROCm."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def name(self) -> str:
        """The name of the card."""
        return torch.cuda.get_device_name(self._device)

    @property
    def uuid(self) -> str:
        """The card's UUID as NVML writes it; empty for a part of a card (MIG), or without CUDA."""
        uuid = getattr(torch.cuda.get_device_properties(self._device), "uuid", "")
        return f"GPU-{uuid}" if uuid and torch.version.cuda and "MIG" not in self.name else ""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()

    def event(self) -> Any:
        """Return a new event with a time."""
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def record(self, event: Any) -> None:
        """Record an event; it belongs to this GPU, whichever is the current one."""
        event.record(torch.cuda.current_stream(self._device))

    def is_over(self, event: Any) -> bool:
        """Query an event."""
        return bool(event.query())

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two events."""
        return float(begin.elapsed_time(end)) / 1000

    def pinned(self, dtype: Any) -> Any:
        """Allocate a number; not as an inference tensor, which no later step could write."""
        with torch.inference_mode(False):
            return torch.empty((), dtype=dtype, device="cpu", pin_memory=True)

    def copy(self, value: Any, pinned: Any) -> None:
        """Copy a number; first to this GPU, whose events say when the copy is over."""
        with torch.no_grad():
            pinned.copy_(value.to(self._device, non_blocking=True).reshape(()), non_blocking=True)
