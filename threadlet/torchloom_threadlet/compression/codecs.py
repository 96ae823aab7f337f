"""What a codec is: a reduction of one bucket, and what it remembers of it from step to step."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from torchloom_threadlet.compression.collectives import Peers, Reduction


@dataclass(frozen=True)
class Memory:
    """What one rank remembers of one bucket; never written to, only replaced.

    Attributes
    ----------
    residual : Tensor, optional
        What of this rank's gradients has not been sent yet; none of it if it is missing.
    basis : Tensor, optional
        PowerSGD's last right factor.
    """

    residual: Tensor | None = None
    basis: Tensor | None = None

    def added_to(self, gradient: Tensor) -> Tensor:
        """Return a new tensor: the gradient with what of earlier ones has not been sent."""
        return gradient.clone() if self.residual is None else gradient + self.residual


class Codec(Protocol):
    """One way to sum a bucket over the ranks.

    Attributes
    ----------
    is_whole : bool
        Whether a bucket must not be reduced in pieces.
    """

    is_whole: bool

    def reduce(
        self, tensor: Tensor, memory: Memory, peers: Peers
    ) -> Reduction[tuple[Tensor, Memory]]:
        """Sum ``tensor`` over all ranks.

        Parameters
        ----------
        tensor : Tensor
            Contiguous float32; it is only read.

        Returns
        -------
        tuple of Tensor and Memory
            The sum, in the shape of ``tensor`` and bitwise the same on all ranks, and what to
            remember if the step is committed.
        """
