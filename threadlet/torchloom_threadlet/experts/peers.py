"""Messages between the workers of one generation, none of which waits for ever.

gloo may forget a send that fails at the very moment at which its peer ends: a wait for it, also
within a collective, lasts until the timeout. So no send is waited for; receives do end with the
peer.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work

_ROWS, _VALUES, _SLICES, _SUMS = 1 << 23, 2 << 23, 3 << 23, 4 << 23  # tags, apart from experts'

_FEW_BYTES = 1 << 17
"""Up to which each worker sends all numbers to all: a phase less."""


class PeerError(RuntimeError):
    """A message between workers has failed: one of them has ended, or the generation has."""


@contextmanager
def _of_a_peer() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerError(str(error)) from None


class Peers:
    """The workers of a generation: the ranks of its group, or one worker without a group.

    Parameters
    ----------
    wait : callable
        Waits for a receive; gloo's own wait may not end with the generation.

    Attributes
    ----------
    waited_s : float
        How long receives have been waited for, in all.
    """

    def __init__(
        self, group: ProcessGroup | None, wait: Callable[[Work], object] = Work.wait
    ) -> None:
        self.group, self._wait = group, wait
        self.rank, self.size = (group.rank(), group.size()) if group is not None else (0, 1)
        self.others = [rank for rank in range(self.size) if rank != self.rank]
        self._sent: list[tuple[Work, Tensor]] = []
        self.waited_s = 0.0

    def send(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Send a tensor, which must not change before the next :meth:`gather`."""
        if self.group is not None and tensor.numel():
            with _of_a_peer():
                self._sent.append((self.group.send([tensor], rank, tag), tensor))

    def receive(self, tensor: Tensor, rank: int, tag: int) -> None:
        """Wait for a tensor of this shape."""
        if self.group is not None and tensor.numel():
            with _of_a_peer():
                self._wait_for(self.group.recv([tensor], rank, tag))

    def exchange(
        self, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], tag: int
    ) -> None:
        """Send a tensor to each of some ranks, and wait for those that they send."""
        if self.group is None:
            return
        # Receives come first: gloo sends no data before the receiver is ready.
        with _of_a_peer():
            works = [
                self.group.recv([tensor], rank, tag)
                for rank, tensor in incoming.items()
                if tensor.numel()
            ]
            for rank, tensor in outgoing.items():
                self.send(tensor, rank, tag)
            for work in works:
                self._wait_for(work)

    def _wait_for(self, work: Work) -> None:
        began_s = time.perf_counter()
        self._wait(work)
        self.waited_s += time.perf_counter() - began_s

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the values of all workers, by rank; collective.

        All workers have then received what was sent to them earlier.
        """
        earlier, self._sent = self._sent, []
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        gathered[self.rank] = values
        self.exchange(
            dict.fromkeys(self.others, values), {r: gathered[r] for r in self.others}, _VALUES
        )
        earlier.clear()
        return gathered

    def all_to_all(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows to all workers, and return those that they send; collective.

        Parameters
        ----------
        rows : Tensor, (sum of sent, width)
            Those for the first worker first.
        sent, received : sequence of int, (workers,)
        """
        outgoing = torch.split(rows.contiguous(), list(sent))
        output = rows.new_empty(sum(received), *rows.shape[1:])
        incoming = torch.split(output, list(received))
        incoming[self.rank].copy_(outgoing[self.rank])
        self.exchange(
            {r: outgoing[r] for r in self.others}, {r: incoming[r] for r in self.others}, _ROWS
        )
        return output

    def sum(self, flat: Tensor) -> Tensor:
        """Return the sum over all workers, always in the order of the ranks; collective.

        Of many numbers each worker sums a slice and sends the sum to the others: as few bytes as
        a ring.

        Parameters
        ----------
        flat : Tensor, (numbers,)
        """
        if flat.nbytes <= _FEW_BYTES:
            return ordered_sum(self.gather(flat))
        slices = flat.tensor_split(self.size)
        parts = [torch.empty_like(slices[self.rank]) for _ in range(self.size)]
        parts[self.rank] = slices[self.rank]
        self.exchange(
            {r: slices[r] for r in self.others}, {r: parts[r] for r in self.others}, _SLICES
        )
        mine = ordered_sum(parts)
        sums = [torch.empty_like(part) for part in slices]
        sums[self.rank] = mine
        self.exchange(dict.fromkeys(self.others, mine), {r: sums[r] for r in self.others}, _SUMS)
        return torch.cat(sums)

    def send_state(self, data: Tensor, rank: int, tag: int) -> None:
        """Send bytes, ``(bytes,)`` of uint8, to a rank that calls :meth:`receive_state`."""
        self.send(torch.tensor([len(data)], dtype=torch.int64, device="cpu"), rank, tag)
        self.send(data, rank, tag)

    def receive_state(self, rank: int, tag: int) -> Tensor:
        """Return the bytes that a rank sends."""
        length = torch.empty(1, dtype=torch.int64, device="cpu")
        self.receive(length, rank, tag)
        data = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        self.receive(data, rank, tag)
        return data


def ordered_sum(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, from the first to the last."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
