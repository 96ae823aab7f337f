"""Messages between the workers of a generation, none of which waits for ever.

gloo may forget a send that fails at the very moment at which its peer ends: a wait for it lasts
until the timeout. So no send is waited for: it is known to have arrived once all workers have
agreed on something later. A receive is waited for so that the end of the generation ends it.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_UP, _DOWN = 4 << 20, 5 << 20  # tags, apart from those of other messages


class Messages:
    """Sends, receives, and the agreement that ends them.

    Parameters
    ----------
    wait : callable
        Waits for a receive: :meth:`Group.wait`; gloo's own wait for a worker alone.
    """

    def __init__(self, wait: Callable[[dist.Work], object] = dist.Work.wait) -> None:
        self._wait = wait
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    def send(self, tensor: Tensor, rank: int, tag: int = 0) -> None:
        """Send a tensor, which must not change before the next agreement."""
        if tensor.numel():
            self._sent.append((dist.isend(tensor, rank, tag=tag), tensor))

    def receive(self, tensor: Tensor, rank: int, tag: int = 0) -> None:
        """Wait for a tensor of this shape."""
        if tensor.numel() and (work := dist.irecv(tensor, rank, tag=tag)) is not None:
            self._wait(work)

    def agree(self, values: Sequence[int]) -> list[int]:
        """Return the least of each value over all workers, by a tree of messages.

        It returns once all workers have called it, so all earlier messages have arrived.
        """
        earlier, self._sent = self._sent, []
        rank, count = dist.get_rank(), dist.get_world_size()
        least = torch.tensor(values, dtype=torch.int64, device="cpu")
        children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < count]
        for child in children:
            theirs = torch.empty_like(least)
            self.receive(theirs, child, _UP)
            least = torch.minimum(least, theirs)
        if rank:
            parent = (rank - 1) // 2
            self.send(least, parent, _UP)
            least = torch.empty_like(least)
            self.receive(least, parent, _DOWN)
        for child in children:
            self.send(least, child, _DOWN)
        earlier.clear()
        return [int(value) for value in least.tolist()]

    def forget(self) -> None:
        """Drop all sends: their generation is over."""
        self._sent = []
