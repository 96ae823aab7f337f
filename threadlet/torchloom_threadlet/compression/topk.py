"""Sends only the largest numbers of each rank, with error feedback: the rest is sent later.

Lin et al., Deep Gradient Compression, 2018 (arXiv 1712.01887); torch has no equivalent.
"""

import math

import torch
from torch import Tensor

from torchloom_threadlet.compression.codecs import Memory, Reduced
from torchloom_threadlet.compression.collectives import Gather, Peers

_PLACE_BYTES = 4


class TopK:
    """Each rank sends its largest numbers as int32 places and bf16 values, 6 bytes each.

    ``share``: the share of numbers to send, in (0, 1].
    """

    is_whole = False

    def __init__(self, share: float) -> None:
        if not 0.0 < share <= 1.0:
            raise ValueError(f"need 0 < topk_share <= 1, was {share}")
        self._share = share

    def reduce(self, tensor: Tensor, memory: Memory, peers: Peers) -> Reduced:
        """Sum the numbers that all ranks send; what a rank does not send is its residual."""
        unsent = memory.added_to(tensor.view(-1))
        count = math.ceil(self._share * unsent.numel())
        # NaN counts as the largest, so that it is sent.
        places = unsent.abs().topk(count, sorted=False).indices
        values = unsent[places].to(torch.bfloat16)
        parts = places.to(torch.int32).view(torch.uint8), values.view(torch.uint8)
        coded = yield Gather(torch.cat(parts))
        total = torch.zeros_like(unsent)
        cut = _PLACE_BYTES * count
        for row in coded.unbind():
            # One rank's places are all different, so that nothing depends on their order.
            theirs = row[:cut].clone().view(torch.int32).long()
            # An aborted collective on a GPU leaves any numbers, and the host does not know yet; a
            # place outside the tensor would end all work on the device.
            theirs.clamp_(0, unsent.numel() - 1)
            total.index_add_(0, theirs, row[cut:].view(torch.bfloat16).float())
        unsent[places] -= values.float()
        # A number that is not finite must not return in every later step.
        residual = unsent.nan_to_num_(0.0, 0.0, 0.0)
        return total.view(tensor.shape), Memory(residual, memory.basis)
