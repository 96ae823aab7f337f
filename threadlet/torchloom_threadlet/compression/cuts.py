"""A bucket in several pieces, each reduced by itself, and the memory of the whole."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torchloom_threadlet.compression.codecs import Codec, Memory, Reduced
from torchloom_threadlet.compression.collectives import Peers, Sum

LEAST_NUMBERS = 1024
"""The least numbers in a tensor that is compressed, and in a piece."""

LEAST_BYTES = 65_536
"""The least bytes of a piece whose size is set."""


class Plain:
    """No codec: the ranks' numbers are summed in place, as they are."""

    is_whole = False

    def reduce(self, tensor: Tensor, memory: Memory, peers: Peers) -> Reduced:
        """Sum ``tensor`` over all ranks, in its own type, and overwrite it."""
        return (yield Sum(tensor)), memory


def edges(numbers: int, width: int, most_bytes: int, at_once: int) -> list[int]:
    """Return the starts of a bucket's pieces, and the end of the last one.

    Sizes differ by one number at most. A piece has at most ``most_bytes``, or, if that is 0, there
    are as many pieces as are in flight at once.

    Examples
    --------
    >>> edges(100_000, width=4, most_bytes=0, at_once=3)
    [0, 33333, 66666, 100000]
    >>> edges(100_000, width=4, most_bytes=200_000, at_once=3)
    [0, 50000, 100000]
    """
    pieces = -(-numbers // (most_bytes // width)) if most_bytes else at_once
    pieces = max(1, min(pieces, numbers // LEAST_NUMBERS))
    return [numbers * place // pieces for place in range(pieces + 1)]


class Bucket:
    """A tensor that is reduced in pieces, and its memory.

    ``tensor``: the tensor to reduce, which gets the sum.
    ``memory``: the whole tensor's.
    ``at``: its :func:`edges`.
    """

    def __init__(self, tensor: Tensor, memory: Memory, at: Sequence[int]) -> None:
        self._tensor = tensor
        self._memory = memory
        self._spans = list(pairwise(at))
        whole = len(self._spans) == 1
        self._parts = [memory] if whole else [_part(memory, *span) for span in self._spans]

    def reductions(self, codec: Codec, peers: Peers) -> list[Reduced]:
        """Return the pieces' reductions, in order; for an uncut bucket the one."""
        tensor = self._tensor if isinstance(codec, Plain) else self._tensor.float()
        tensor = tensor.contiguous()
        if len(self._spans) == 1:
            return [codec.reduce(tensor, self._memory, peers)]
        pieces = [tensor.view(-1)[start:stop] for start, stop in self._spans]
        pairs = zip(pieces, self._parts, strict=True)
        return [codec.reduce(piece, part, peers) for piece, part in pairs]

    def remembered(self, parts: Sequence[Memory]) -> Memory:
        """Return the memory of the whole; the old one if no piece has a new one."""
        if len(parts) == 1:
            return parts[0]
        if all(now is before for now, before in zip(parts, self._parts, strict=True)):
            return self._memory
        residuals = [part.residual for part in parts if part.residual is not None]
        return Memory(torch.cat(residuals), self._memory.basis)

    def write(self, totals: Sequence[Tensor], divisor: int) -> None:
        """Write the pieces' sums, divided, to the tensor."""
        is_flat = self._tensor.is_contiguous()
        numbers = self._tensor.numel()
        into = self._tensor.view(-1) if is_flat else self._tensor.new_empty(numbers)
        for (start, stop), total in zip(self._spans, totals, strict=True):
            if divisor != 1:
                total /= divisor
            if total.data_ptr() != into[start:stop].data_ptr():
                into[start:stop].copy_(total.view(-1))
        if not is_flat:
            self._tensor.copy_(into.view(self._tensor.shape))


def _part(memory: Memory, start: int, stop: int) -> Memory:
    residual = memory.residual
    return Memory(None if residual is None else residual[start:stop], memory.basis)
