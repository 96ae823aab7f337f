"""The interface of a codec: the reduction of one bucket, and its memory from step to step."""

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


class Codec(Protocol):
    """One way to sum a bucket over the ranks.

    ``is_whole``: whether a bucket must not be reduced in pieces.
    """

    is_whole: bool

    def reduce(
        self, tensor: Tensor, memory: Memory, peers: Peers
    ) -> Reduction[tuple[Tensor, Memory]]:
        """Sum ``tensor`` over all ranks.

        ``tensor``: contiguous float32; it is only read.
        Returns the sum, in the shape of ``tensor`` and bitwise the same on all ranks, and the
        memory for the case that the step is committed.
        """
