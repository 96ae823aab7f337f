"""A torchft process group whose groups are in a configurable order.

Outside, a rank is torchft's; inside, in the wrapped process group, it is a position in the ring.
A call that names a rank, such as the root of a broadcast, means the same peer in any order.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import Work
from torch.distributed.distributed_c10d import BroadcastOptions
from torchft.process_group import (
    ProcessGroup,
    ProcessGroupWrapper,
    ReconfigureOptions,
    create_store_client,
)

from torchloom_core.wire.limits import MAX_ORDER
from torchloom_core.wire.steering import name_of_replica

_ATTEMPT = "torchloom_attempt"
_KEY = "torchloom_place"
_NONE = -1
"""The place of a group that the order does not name."""

_TIMEOUT = timedelta(seconds=60)
_Part = TypeVar("_Part")


class Wrapper(ProcessGroupWrapper):  # type: ignore[misc]
    """Passes all calls on to ``pg``; torchft's own wrapper drops it on an abort."""

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(timeout=getattr(pg, "_timeout", None) or _TIMEOUT, pg=pg)

    def abort(self, errored: bool = True) -> None:
        """Abort the wrapped process group; it can be reconfigured."""
        self._pg.abort()

    def shutdown(self) -> None:
        """Shut the wrapped process group down."""
        self._pg.shutdown()

    def errored(self) -> Exception | None:
        """Return the wrapped process group's error."""
        return self._pg.errored()  # type: ignore[no-any-return]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout, of the wrapped process group as well."""
        super().set_timeout(timeout)
        self._pg.set_timeout(timeout)


class Ring:
    """The order of a quorum's ranks in the ring.

    ``ranks``: the rank at each position, every rank once.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.is_plain = ranks == tuple(range(len(ranks)))

    def position(self, rank: int) -> int:
        """Return a rank's position."""
        return self.ranks.index(rank)

    def by_position(self, by_rank: Sequence[_Part]) -> list[_Part]:
        """Return the ranks' items in the order of the positions; an empty list for an empty one."""
        return [by_rank[rank] for rank in self.ranks] if by_rank else []

    def by_rank(self, by_position: Sequence[_Part]) -> list[_Part]:
        """Return the positions' items in the order of the ranks."""
        return [by_position[self.position(rank)] for rank in range(len(self.ranks))]


def with_place(handle: str, order: str, group: str) -> str:
    """Return a handle with the group's place in ``order``; unchanged if it cannot contain it."""
    names = order.split(",") if order else []
    place = names.index(group) if group in names else _NONE
    try:
        return json.dumps({**json.loads(handle), _KEY: place})
    except (ValueError, TypeError):  # a process group of the user's own
        return handle


def ring_of(handles: Sequence[str]) -> Ring:
    """Return the ring of a quorum's handles, which are in the order of the ranks.

    The same handles make the same ring on all members: torchft's order decides between equal
    places, and if one handle has no place, the whole ring keeps torchft's order.
    """
    ranks = range(len(handles))
    places = [_place(handle) for handle in handles]
    if None in places:
        return Ring(tuple(ranks))
    last = MAX_ORDER
    keys = [last if place in (_NONE, None) else place for place in places]
    return Ring(tuple(sorted(ranks, key=keys.__getitem__)))


def _place(handle: str) -> int | None:
    """Return the place in a handle, None if there is no valid one."""
    try:
        place = json.loads(handle)[_KEY]
    except (ValueError, TypeError, KeyError, RecursionError):  # any member's, so unchecked
        return None
    return place if type(place) is int and _NONE <= place < MAX_ORDER else None


class OrderedProcessGroup(Wrapper):
    """Wraps any torchft process group; the members' handles give the order of its ring.

    Attributes
    ----------
    ring_order : str
        Names of replica groups, separated by commas. It takes effect at the next quorum or the
        next :meth:`reorder`.
    takes_order : bool
        Whether its handle contains its place, so that :meth:`reorder` is called with all
        handles; if one of a quorum has none, all keep torchft's order.
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
        """Join another quorum, in the order of its handles."""
        self._ring = ring_of(opts.handles)
        ordered = ReconfigureOptions()
        ordered.uuid, ordered.timeout, ordered.hints = opts.uuid, opts.timeout, dict(opts.hints)
        ordered.handles = self._ring.by_position(opts.handles)
        if attempt := ordered.hints.pop(_ATTEMPT, ""):
            first, *others = ordered.handles
            fields = json.loads(first)
            store = f"{fields['store']}/order/{attempt}"  # new keys, at which the members meet
            ordered.handles = [json.dumps({**fields, "store": store}), *others]
        return super().reconfigure(ordered)

    def reorder(self, handles: Sequence[str], attempt: int) -> None:
        """Order the members of the present quorum as these handles say, all at once.

        Parameters
        ----------
        handles : sequence of str
            The present handles of all members.
        attempt : int
            A number that all members have and that is new in this quorum: gloo's old addresses
            stay at the keys where its members have met.

        Raises
        ------
        RuntimeError
            If a peer does not come; only another quorum repairs that.
        """
        ring = ring_of(handles)
        if ring.ranks == self._ring.ranks:
            return
        opts = ReconfigureOptions()
        opts.uuid, opts.handles, opts.hints = self._uuid, list(handles), {_ATTEMPT: str(attempt)}
        opts.timeout = self._timeout
        try:
            _wait_for_store(ring.by_position(handles)[0], self._timeout)
            self.reconfigure(opts).wait()  # the instance's own method: it may be wrapped
        except Exception:
            self.abort()  # no collective in the old order: other members may have the new one
            raise

    # --- methods that name a rank, or whose tensors are laid out by ranks -----------------------

    def send(self, tensors: list[Tensor], dst_rank: int, tag: int) -> Any:
        """Send to a rank."""
        return super().send(tensors, self._ring.position(dst_rank), tag)

    def recv(self, tensors: list[Tensor], src_rank: int, tag: int) -> Any:
        """Receive from a rank."""
        return super().recv(tensors, self._ring.position(src_rank), tag)

    def broadcast(self, tensor_list: list[Tensor], opts: Any) -> Any:
        """Broadcast from the root."""
        ordered = BroadcastOptions()
        ordered.rootRank = self._ring.position(opts.rootRank)
        ordered.rootTensor, ordered.timeout = opts.rootTensor, opts.timeout
        ordered.asyncOp = opts.asyncOp
        return super().broadcast(tensor_list, ordered)

    def allgather(
        self, output_tensors: list[list[Tensor]], input_tensor: list[Tensor], opts: Any
    ) -> Any:
        """Gather each rank's tensor at its place."""
        outputs = [self._ring.by_position(row) for row in output_tensors]
        return super().allgather(outputs, input_tensor, opts)

    def allgather_into_tensor_coalesced(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any
    ) -> Any:
        """Gather each rank's tensor at its place."""
        gather = super().allgather_into_tensor_coalesced
        if self._ring.is_plain:
            return gather(output_tensors, input_tensors, opts)
        ordered = [torch.empty_like(output) for output in output_tensors]

        def restore() -> None:
            for output, own in zip(output_tensors, ordered, strict=True):
                output.copy_(torch.cat(self._ring.by_rank(self._parts(own))))

        return Rearranged(gather(ordered, input_tensors, opts), restore)

    def reduce_scatter(
        self, output_tensors: list[Tensor], input_tensors: list[list[Tensor]], opts: Any
    ) -> Any:
        """Give each rank the sum of the tensors at its place."""
        inputs = [self._ring.by_position(row) for row in input_tensors]
        return super().reduce_scatter(output_tensors, inputs, opts)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: list[Tensor], input_tensors: list[Tensor], opts: Any
    ) -> Any:
        """Give each rank the sum of the tensors at its place."""
        inputs = input_tensors
        if not self._ring.is_plain:
            inputs = [torch.cat(self._ring.by_position(self._parts(own))) for own in input_tensors]
        return super().reduce_scatter_tensor_coalesced(output_tensors, inputs, opts)

    def alltoall_base(
        self,
        output_buffer: Tensor,
        input_buffer: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any,
    ) -> Any:
        """Give each rank the tensors at its place."""
        exchange, ring = super().alltoall_base, self._ring
        if ring.is_plain:
            sizes = output_split_sizes, input_split_sizes
            return exchange(output_buffer, input_buffer, *sizes, opts)
        rows = torch.cat(ring.by_position(self._parts(input_buffer, input_split_sizes)))
        answer = torch.empty_like(output_buffer)
        sizes = ring.by_position(output_split_sizes), ring.by_position(input_split_sizes)

        def restore() -> None:
            output_buffer.copy_(torch.cat(ring.by_rank(self._parts(answer, sizes[0]))))

        return Rearranged(exchange(answer, rows, *sizes, opts), restore)

    def _parts(self, tensor: Tensor, sizes: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Return the parts of a tensor, one per rank, equal if no sizes are given."""
        whole = list(sizes) or [tensor.shape[0] // len(self._ring.ranks)] * len(self._ring.ranks)
        return torch.split_with_sizes(tensor, whole)


def _wait_for_store(handle: str, timeout: timedelta) -> None:
    """Wait for the rendezvous store's answer: torch waits for a frozen store for ever.

    Raises RuntimeError if it does not answer in time.
    """
    address = json.loads(handle)["store"]

    def meet() -> None:
        with contextlib.suppress(Exception):  # the next user of the store gets the error
            create_store_client(address, timeout)

    looks = threading.Thread(target=meet, name="torchloom-order", daemon=True)
    looks.start()
    looks.join(timeout.total_seconds())
    if looks.is_alive():
        raise RuntimeError(f"need an answer from {address} within {timeout}")


class Rearranged(Work):
    """A work whose answer is put in order once it is complete."""

    def __init__(self, work: Any, restore: Callable[[], None]) -> None:
        super().__init__()

        def then(done: Any) -> Any:
            answer = done.value()
            restore()
            return answer

        self._future = work.get_future().then(then)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the work, which has a timeout of its own."""
        self._future.wait()
        return True

    def get_future(self) -> Any:
        """Return a future with the work's own result."""
        return self._future
