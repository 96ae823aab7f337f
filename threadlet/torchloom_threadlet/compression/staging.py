"""The way of a reduction on an accelerator: its streams, its events, its page-locked memory.

gloo sends from the host's memory. What it sends is copied there, and its answer back, on streams
of their own, while the next piece is coded; only the thread of the reductions waits for a copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchloom_threadlet.cleaning import error_line, warn_once
from torchloom_threadlet.compression.collectives import (
    Collective,
    Direct,
    Exchange,
    Gather,
    Issue,
    Sum,
    Transfer,
)
from torchloom_threadlet.compression.figures import Cost


class Accelerator:
    """The streams of one device: one codes, one copies to the host, one copies back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.devices: list[int | str | torch.device] = [device]  # as a future takes them
        self.coding: Any = torch.Stream(device)
        self.to_host: Any = torch.Stream(device)
        self.from_host: Any = torch.Stream(device)

    def current(self) -> Any:
        """Return the calling thread's current stream."""
        return torch.accelerator.current_stream(self.device)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Launch into ``stream``: the stream's own context cannot be entered by two threads."""
        before = self.current()
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)

    def mark(self, stream: Any) -> Any:
        """Return an event, with a time, after the present work of ``stream``."""
        event = torch.Event(self.device, enable_timing=True)
        event.record(stream)
        return event

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Keep the tensor's memory until the present work of ``stream`` has ended."""
        tensor.record_stream(stream)

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Copy between the device and page-locked memory, in the current stream."""
        into.copy_(source, non_blocking=True)

    def host_memory(self, like: Tensor) -> Tensor:
        """Return the host's memory for a tensor of the device."""
        return _page_locked(like.shape, like.dtype)


def answer_to(sent: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return memory for the answer to what is sent, of the same kind and type."""
    if sent.is_pinned():
        return _page_locked(shape, sent.dtype)
    return sent.new_empty(shape)


def _page_locked(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return page-locked memory; torch keeps it, and reuses it once its copies have ended.

    If there is none, other memory, with one warning.
    """
    try:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
    except RuntimeError as error:
        warn_once(
            "page-locked memory", f"there is none, so copies take longer: {error_line(error)}"
        )
        return torch.empty(shape, dtype=dtype, device="cpu")


class DeviceWay:
    """The way of one reduction whose collectives the backend does on the device, as NCCL does.

    Nothing waits on the host. The times are the device's, and are read later.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._coding: list[tuple[Any, Any]] = []
        self._wire: list[tuple[Any, Any]] = []

    @contextmanager
    def coding(self) -> Iterator[None]:
        """Measure what is launched meanwhile."""
        with self._measured(self.accelerator.coding):
            yield

    def carry(self, collective: Collective, issue: Issue) -> Transfer:
        """Issue ``collective``; its answer is ordered by the coding stream."""
        return _OnDevice(collective, issue, self.accelerator, self._wire)

    def read(self) -> Cost | None:
        """Return the times by the device's clock; None until all of it has ended there.

        Pieces whose collectives overlap each count in ``wire_s``.
        """
        pairs = (*self._coding, *self._wire)
        if not all(ended.query() for _, ended in pairs):
            return None
        return Cost(compress_s=_seconds(self._coding), wire_s=_seconds(self._wire))

    @contextmanager
    def _measured(self, stream: Any) -> Iterator[None]:
        began = self.accelerator.mark(stream)
        try:
            yield
        finally:  # a reduction's last coding ends it, with StopIteration
            self._coding.append((began, self.accelerator.mark(stream)))


class StagedWay(DeviceWay):
    """The way of one reduction whose collectives pass through the host's memory, as gloo's do.

    A copy counts as coding: it takes as long at any bandwidth of the network.
    """

    def carry(self, collective: Collective, issue: Issue) -> Transfer:
        """Begin to copy ``collective`` to the host."""
        return _Staged(collective, issue, self.accelerator, self._measured)


class _OnDevice:
    """A collective on the device."""

    issued = ended = 0.0  # the host sees neither

    def __init__(
        self,
        collective: Collective,
        issue: Issue,
        accelerator: Accelerator,
        wire: list[tuple[Any, Any]],
    ) -> None:
        self._accelerator, self._wire = accelerator, wire
        self._began = accelerator.mark(accelerator.coding)
        self._work, self._answer = issue(collective)

    def begin(self) -> None:
        """Do nothing: it is issued."""

    def wait(self) -> Tensor:
        """Let the coding stream wait for the answer, and return it."""
        self._work.wait()
        self._wire.append((self._began, self._accelerator.mark(self._accelerator.coding)))
        return self._answer


class _Staged:
    """A collective of the host: issued once it is copied there."""

    def __init__(
        self, collective: Collective, issue: Issue, accelerator: Accelerator, measured: Any
    ) -> None:
        self._issue, self._accelerator, self._measured = issue, accelerator, measured
        self._direct: Direct | None = None
        self._given = _tensor(collective)  # kept until the copy has ended
        host, stream = accelerator.host_memory(self._given), accelerator.to_host
        stream.wait_event(accelerator.mark(accelerator.coding))
        with accelerator.on(stream), measured(stream):
            accelerator.copy(host, self._given)
        self._copied = accelerator.mark(stream)
        self._collective = type(collective)(host)

    @property
    def issued(self) -> float:
        """The host's time of the issue."""
        return self._direct.issued if self._direct else 0.0

    @property
    def ended(self) -> float:
        """The host's time of the end."""
        return self._direct.ended if self._direct else 0.0

    def begin(self) -> None:
        """Issue it, once it is copied to the host."""
        if self._direct is None:
            self._copied.synchronize()
            self._direct = Direct(self._collective, self._issue)

    def wait(self) -> Tensor:
        """Wait for the answer, and return it; the coding stream waits until it is copied back."""
        self.begin()
        assert self._direct is not None
        host = self._direct.wait()
        answer = torch.empty(host.shape, dtype=host.dtype, device=self._given.device)
        accelerator, stream = self._accelerator, self._accelerator.from_host
        # The allocator may have given memory that work launched so far still uses.
        stream.wait_event(accelerator.mark(accelerator.coding))
        with accelerator.on(stream), self._measured(stream):
            accelerator.copy(answer, host)
        accelerator.coding.wait_event(accelerator.mark(stream))
        return answer


def _tensor(collective: Collective) -> Tensor:
    match collective:
        case Exchange(rows=tensor) | Gather(row=tensor) | Sum(tensor=tensor):
            return tensor


def _seconds(pairs: list[tuple[Any, Any]]) -> float:
    return float(sum(began.elapsed_time(ended) for began, ended in pairs)) / 1e3
