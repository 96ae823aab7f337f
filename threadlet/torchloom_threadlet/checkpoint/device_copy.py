"""Copies of a GPU's tensors on a stream of their own: work on the GPU waits, the host does not."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_MOST_S, _LOOK_S = 600.0, 0.001

Pair = tuple[Tensor, Tensor]
"""Where a tensor is copied to, and the tensor."""


class SideStream:
    """The stream of one GPU for copies; ``cuda`` is ``torch.cuda``, or what a test has for it."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device, self._cuda = device, cuda
        self._stream = cuda.Stream(device)

    def copy(self, at_once: Sequence[Pair], steady: Sequence[Pair]) -> "DeviceCopy":
        """Begin to copy what the GPU's stream has computed by now.

        All later work of that stream waits for ``at_once``; for ``steady`` only what follows
        :meth:`DeviceCopy.hold`.
        """
        cuda = self._cuda
        compute = cuda.current_stream(self._device)
        self._stream.wait_stream(compute)
        self._enqueue(at_once)
        if at_once:
            compute.wait_stream(self._stream)
        self._enqueue(steady)
        over = cuda.Event()
        over.record(self._stream)
        return DeviceCopy(self._device, cuda, over, (at_once, steady))

    def _enqueue(self, pairs: Sequence[Pair]) -> None:
        with self._cuda.stream(self._stream), torch.no_grad():
            for place, tensor in pairs:
                place.copy_(tensor, non_blocking=True)


class DeviceCopy:
    """A copy on a side stream; ``kept`` are its tensors, which must last until it is over."""

    def __init__(self, device: torch.device, cuda: Any, over: Any, kept: object) -> None:
        self._device, self._cuda, self._over, self._kept = device, cuda, over, kept

    @property
    def is_over(self) -> bool:
        """Whether all has been copied."""
        return bool(self._over.query())

    def hold(self) -> None:
        """Have later work of the GPU's stream wait until all has been copied."""
        self._cuda.current_stream(self._device).wait_event(self._over)

    def wait(self) -> None:
        """Wait on the host until all has been copied.

        Raises TimeoutError after ten minutes, as for a GPU that hangs.
        """
        deadline_s = time.monotonic() + _MOST_S
        while not self.is_over:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the GPU has not copied it within {_MOST_S:.0f} s")
            time.sleep(_LOOK_S)


class SideStreams:
    """The side streams of the GPUs that a rank's tensors are on."""

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._streams: dict[torch.device, SideStream] = {}

    @property
    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being recorded, which no call here may disturb."""
        return bool(self._streams) and bool(self._cuda.is_current_stream_capturing())

    def copy(self, at_once: Sequence[Pair], steady: Sequence[Pair]) -> list[DeviceCopy]:
        """Begin to copy these tensors of GPUs, as :meth:`SideStream.copy` does for one."""
        copies = []
        for device in dict.fromkeys(tensor.device for _, tensor in (*at_once, *steady)):
            if device not in self._streams:
                self._streams[device] = SideStream(device, self._cuda)
            parts = ([pair for pair in of if pair[1].device == device] for of in (at_once, steady))
            copies.append(self._streams[device].copy(*parts))
        return copies
