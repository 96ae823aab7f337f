"""Simulates a slow network: a process group whose collectives take longer.

For demonstrations, without the rights that traffic shaping requires. Use it inside a
:class:`~torchloom_threadlet.compression.CompressedProcessGroup`; it needs torch and torchft.
"""

import contextlib
import threading
import time
from functools import partial
from typing import Any

from torch import Tensor

from torchloom_threadlet.compression.collectives import ring_bytes
from torchloom_threadlet.compression.ordered import Wrapper
from torchloom_threadlet.compression.work import CompressedWork


class ThrottledProcessGroup(Wrapper):
    """Wraps a torchft process group so that each rank seems to send so many bytes a second.

    Allreduce, alltoall and allgather end no sooner than they would over such a link, one after
    another. Other operations keep their speed.

    Parameters
    ----------
    pg : torchft.ProcessGroup
        Does the communication.
    bytes_per_s : float, optional
        May be set at any time, for collectives issued from then on; None: no limit.
    """

    def __init__(self, pg: Any, bytes_per_s: float | None = None) -> None:
        super().__init__(pg)
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Reduce over all ranks, slowly."""
        sent = sum(ring_bytes(tensor, self.size()) for tensor in tensors)
        return self._slowed(super().allreduce(tensors, opts), tensors, sent)

    def alltoall_base(
        self,
        output_buffer: Tensor,
        input_buffer: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any,
    ) -> Any:
        """Exchange with all ranks, slowly."""
        sizes = output_split_sizes, input_split_sizes
        work = super().alltoall_base(output_buffer, input_buffer, *sizes, opts)
        sent = input_buffer.nbytes * (self.size() - 1) // self.size()
        return self._slowed(work, [output_buffer], sent)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensor: list[Tensor], opts: Any
    ) -> Any:
        """Gather from all ranks, slowly."""
        work = super().allgather(output_tensors, input_tensor, opts)
        sent = sum(tensor.nbytes for tensor in input_tensor) * (self.size() - 1)
        return self._slowed(work, output_tensors[0], sent)

    def reconfigure(self, opts: Any) -> Any:
        """Join another quorum, with idle links."""
        self._free_at = 0.0
        return super().reconfigure(opts)

    def _slowed(self, work: Any, tensors: list[Tensor], sent: int) -> Any:
        """Return a work that ends once the link would have sent that many more bytes."""
        if self.bytes_per_s is None:
            return work
        self._free_at = max(self._free_at, time.monotonic()) + sent / self.bytes_per_s
        slowed = CompressedWork(tensors)
        end = partial(_end, slowed, work, self._free_at)
        threading.Thread(target=end, name="torchloom-throttle", daemon=True).start()
        return slowed


def _end(slowed: CompressedWork, work: Any, at: float) -> None:
    def both() -> None:
        work.wait()
        time.sleep(max(0.0, at - time.monotonic()))

    with contextlib.suppress(Exception):  # the work's waiter gets it
        slowed.run(both)
