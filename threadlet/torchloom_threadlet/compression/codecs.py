"""The interface of a codec, a bucket in several pieces, and its memories from step to step."""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from torchloom_threadlet.compression.collectives import Peers, Reduction, Sum

LEAST_NUMBERS = 1024
"""The least numbers in a tensor that is compressed, and in a piece."""

LEAST_BYTES = 65_536
"""The least bytes of a piece whose size is set."""


@dataclass(frozen=True)
class Memory:
    """One rank's memory of one bucket; never changed, only replaced.

    ``residual``: the part of this rank's gradients that is not sent yet; None for nothing.
    ``basis``: PowerSGD's last right factor.
    """

    residual: Tensor | None = None
    basis: Tensor | None = None

    def added_to(self, gradient: Tensor) -> Tensor:
        """Return a new tensor: the gradient plus the unsent part of earlier ones."""
        return gradient.clone() if self.residual is None else gradient + self.residual


Reduced = Reduction[tuple[Tensor, Memory]]
"""A reduction that returns the sum, and the memory for the case that the step is committed."""


class Codec(Protocol):
    """One way to sum a bucket over the ranks.

    ``is_whole``: whether a bucket must not be reduced in pieces.
    """

    is_whole: bool

    def reduce(self, tensor: Tensor, memory: Memory, peers: Peers) -> Reduced:
        """Sum ``tensor`` over all ranks.

        ``tensor``: contiguous float32; it is only read.
        The sum has the shape of ``tensor`` and is bitwise the same on all ranks.
        """


_NOTHING = Memory()


@dataclass(frozen=True)
class Turn:
    """One reduction's bucket, its step, and the bucket's memory."""

    bucket: Hashable
    step: int
    memory: Memory


class Feedback:
    """The memories of one rank.

    A bucket is identified by its part of the model, its index among the step's reductions, and its
    size. These are the same in every step, with or without compression, and however the tensors are
    allocated.
    """

    def __init__(self) -> None:
        self.part: Hashable = ""
        self._lock = threading.Lock()
        self._step = 0
        self._place = 0
        self._committed: dict[Hashable, Memory] = {}
        self._staged: dict[Hashable, Memory] = {}

    def take_turn(self, numbers: int) -> Turn:
        """Return the turn of the step's next reduction."""
        with self._lock:
            bucket = (self.part, self._place, numbers)
            self._place += 1
            return Turn(bucket, self._step, self._committed.get(bucket, _NOTHING))

    def stage(self, turn: Turn, memory: Memory) -> None:
        """Store ``memory`` for the case that the turn's step is committed; ignore a past step's."""
        with self._lock:
            if turn.step == self._step and memory is not turn.memory:
                self._staged[turn.bucket] = memory

    def end_step(self, committed: bool) -> None:
        """Keep this step's staged memories, or drop them; begin the next step."""
        with self._lock:
            if committed:
                self._committed |= self._staged
            self._staged = {}
            self._step += 1
            self._place = 0


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
