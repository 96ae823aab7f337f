"""The interface of a codec, the reduction of one bucket, and its memories from step to step."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torchloom_threadlet.compression.collectives import Peers, Reduction


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
