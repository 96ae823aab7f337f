"""A sum in which every rank adds up its share: quantized on the way to it and from it."""

from torch import Tensor
from torch.nn.functional import pad

from torchloom_threadlet.compression.codecs import Memory
from torchloom_threadlet.compression.collectives import Exchange, Gather, Peers, Reduction
from torchloom_threadlet.compression.quantizers import Quantizer


class Sharded:
    """Each share is summed in float32 by one rank, whose bytes all ranks then decode.

    So the error is that of two quantizations whatever the number of ranks, and all end with the
    same bits whatever the order of the sum.
    """

    is_whole = False

    def __init__(self, quantizer: Quantizer) -> None:
        self._quantizer = quantizer

    def reduce(
        self, tensor: Tensor, memory: Memory, peers: Peers
    ) -> Reduction[tuple[Tensor, Memory]]:
        """Sum ``tensor`` over all ranks; the memory does not change."""
        quantizer = self._quantizer
        numbers = tensor.numel()
        blocks = -(-numbers // (peers.ranks * quantizer.block))
        padding = blocks * peers.ranks * quantizer.block - numbers
        flat = tensor.view(-1)
        rows = (pad(flat, (0, padding)) if padding else flat).view(peers.ranks, -1)
        mine = quantizer.decode((yield Exchange(quantizer.encode(rows)))).sum(0, keepdim=True)
        shares = yield Gather(quantizer.encode(mine)[0])
        return quantizer.decode(shares).view(-1)[:numbers].view(tensor.shape), memory
