"""A torchft process group in which the groups stand in an order of one's own choice.

Outside a rank is what torchft says; inside, in the wrapped process group, it is a seat in the ring.
Whoever names a rank, such as the root of a broadcast, means the same peer before and after.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.distributed.distributed_c10d import BroadcastOptions
from torchft.process_group import ProcessGroup, ReconfigureOptions, create_store_client

from torchloom_core.wire.steering import name_of_replica
from torchloom_threadlet.compression.ring import (
    Ring,
    on_a_store_of_its_own,
    ring_of,
    with_place,
)
from torchloom_threadlet.compression.wrapper import Wrapper

_ATTEMPT = "torchloom_attempt"


class OrderedProcessGroup(Wrapper):
    """Wraps any torchft process group, whose ring goes as its members' handles say.

    Attributes
    ----------
    ring_order : str
        Names of replica groups, with commas between. It counts from the next quorum on, or from
        the next :meth:`reorder`.
    takes_order : bool
        Whether its handle says its place, so that whoever hears all handles reorders it; where
        one of a quorum does not, all keep torchft's order.
    """

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(pg)
        self.ring_order = ""
        self.takes_order = False
        self._ring = Ring(())

    def get_reconfigure_handle(self) -> str:
        """Return the wrapped process group's handle, and this group's place in the order."""
        handle: str = super().get_reconfigure_handle()
        if not self.takes_order:
            return handle
        return with_place(handle, self.ring_order, name_of_replica(self._replica_id or ""))

    def reconfigure(self, opts: Any) -> Any:
        """Take part in another quorum, seated as its handles say."""
        self._ring = ring_of(opts.handles)
        seated = ReconfigureOptions()
        seated.uuid, seated.timeout, seated.hints = opts.uuid, opts.timeout, dict(opts.hints)
        seated.handles = self._ring.by_seat(opts.handles)
        if attempt := seated.hints.pop(_ATTEMPT, ""):
            seated.handles = on_a_store_of_its_own(seated.handles, f"order/{attempt}")
        return super().reconfigure(seated)

    def reorder(self, handles: Sequence[str], attempt: int) -> None:
        """Have the members of the present quorum seated as these handles say, all at once.

        Parameters
        ----------
        handles : sequence of str
            Those of all members, as they are now.
        attempt : int
            A number that all of them know and that was not used in this quorum before: where
            gloo's members have met, their old addresses lie.

        Raises
        ------
        RuntimeError
            If a peer does not come; only another quorum makes that good.
        """
        ring = ring_of(handles)
        if ring.seats == self._ring.seats:
            return
        opts = ReconfigureOptions()
        opts.uuid, opts.handles, opts.hints = self._uuid, list(handles), {_ATTEMPT: str(attempt)}
        opts.timeout = self._timeout
        try:
            _wait_for_store(ring.by_seat(handles)[0], self._timeout)
            self.reconfigure(opts).wait()  # the instance's own: others may watch it
        except Exception:
            self.abort()  # not one collective in the old order: others may stand in the new one
            raise

    # --- whatever names a rank, or is laid out by ranks ---------------------------------------

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int) -> Any:
        """Send to a rank."""
        return super().send(tensors, self._ring.seat(dst_rank), tag)

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> Any:
        """Receive from a rank."""
        return super().recv(tensors, self._ring.seat(src_rank), tag)

    def broadcast(self, tensor_list: list[Tensor], opts: Any) -> Any:
        """Broadcast from the rank that is the root."""
        seated = BroadcastOptions()
        seated.rootRank = self._ring.seat(opts.rootRank)
        seated.rootTensor, seated.timeout = opts.rootTensor, opts.timeout
        seated.asyncOp = opts.asyncOp
        return super().broadcast(tensor_list, seated)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensor: list[Tensor], opts: Any
    ) -> Any:
        """Gather what each rank has given at its place."""
        outputs = [self._ring.by_seat(row) for row in output_tensors]
        return super().allgather(outputs, input_tensor, opts)

    def allgather_into_tensor_coalesced(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any
    ) -> Any:
        """Gather what each rank has given at its place."""
        gather = super().allgather_into_tensor_coalesced
        if self._ring.is_plain:
            return gather(output_tensors, input_tensors, opts)
        seated = [torch.empty_like(output) for output in output_tensors]

        def put_back() -> None:
            for output, own in zip(output_tensors, seated, strict=True):
                output.copy_(torch.cat(self._ring.by_rank(self._parts(own))))

        return Rearranged(gather(seated, input_tensors, opts), put_back)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> Any:
        """Give each rank the sum of what is at its place."""
        inputs = [self._ring.by_seat(row) for row in input_tensors]
        return super().reduce_scatter(output_tensors, inputs, opts)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any
    ) -> Any:
        """Give each rank the sum of what is at its place."""
        inputs = input_tensors
        if not self._ring.is_plain:
            inputs = [torch.cat(self._ring.by_seat(self._parts(own))) for own in input_tensors]
        return super().reduce_scatter_tensor_coalesced(output_tensors, inputs, opts)

    def alltoall_base(
        self,
        output_buffer: Tensor,
        input_buffer: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any,
    ) -> Any:
        """Give each rank what is at its place."""
        exchange, ring = super().alltoall_base, self._ring
        if ring.is_plain:
            sizes = output_split_sizes, input_split_sizes
            return exchange(output_buffer, input_buffer, *sizes, opts)
        rows = torch.cat(ring.by_seat(self._parts(input_buffer, input_split_sizes)))
        answer = torch.empty_like(output_buffer)
        sizes = ring.by_seat(output_split_sizes), ring.by_seat(input_split_sizes)

        def put_back() -> None:
            output_buffer.copy_(torch.cat(ring.by_rank(self._parts(answer, sizes[0]))))

        return Rearranged(exchange(answer, rows, *sizes, opts), put_back)

    def _parts(self, tensor: Tensor, sizes: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Return the parts of a tensor, one for each rank, equal where no sizes are given."""
        whole = list(sizes) or [tensor.shape[0] // len(self._ring.seats)] * len(self._ring.seats)
        return torch.split_with_sizes(tensor, whole)


def _wait_for_store(handle: str, timeout: timedelta) -> None:
    """Wait until the store answers where the members meet: torch waits for a frozen one for ever.

    Raises
    ------
    RuntimeError
        If it does not in time.
    """
    address = json.loads(handle)["store"]

    def meet() -> None:
        with contextlib.suppress(Exception):  # whoever meets there next is told
            create_store_client(address, timeout)

    looks = threading.Thread(target=meet, name="torchloom-order", daemon=True)
    looks.start()
    looks.join(timeout.total_seconds())
    if looks.is_alive():
        raise RuntimeError(f"need an answer from {address} within {timeout}")


class Rearranged(Work):
    """A work whose answer is put in order once it is there."""

    def __init__(self, work: Any, put_back: Callable[[], None]) -> None:
        super().__init__()

        def then(done: Any) -> Any:
            answer = done.value()
            put_back()
            return answer

        self._future = work.get_future().then(then)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the work, which has a time-out of its own."""
        self._future.wait()
        return True

    def get_future(self) -> Any:
        """Return a future that holds what the work's own does."""
        return self._future
