"""Numbers in fewer bytes, bf16, fp16 or int8 with a scale per block, and sums of them.

torch's own do not fit: the casts of ``default_hooks`` sum in the narrow type and let fp16
overflow; ``quantization_hooks`` gathers whole tensors, so that its bytes grow with the ranks,
and quantizes channel by channel in a Python loop.
"""

import logging
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.compression.codecs import Memory, Reduced
from torchloom_threadlet.compression.collectives import Exchange, Gather, Peers

_LEAST = 2.0**-126
_INT8_MOST = 127.0
_FP16_EXPONENT = 15
"""The largest magnitude of a block is scaled to [2**14, 2**15): fp16 does not overflow."""

_logger = logging.getLogger(__name__)


class Quantizer(ABC):
    """Writes float32 rows as bytes and reads them back.

    ``block``: rows must be whole blocks of this many numbers.
    """

    block = 1

    @abstractmethod
    def encode(self, rows: Tensor) -> Tensor:
        """Return (rows, bytes), contiguous, of (rows, numbers)."""

    @abstractmethod
    def decode(self, coded: Tensor) -> Tensor:
        """Return (rows, numbers) of (rows, bytes)."""


class Bfloat16(Quantizer):
    """The upper half of a float32, rounded: 2 bytes, an error of at most 2**-8 of the number."""

    def encode(self, rows: Tensor) -> Tensor:
        """Return 2 bytes a number."""
        return rows.to(torch.bfloat16).view(torch.uint8)

    def decode(self, coded: Tensor) -> Tensor:
        """Return the numbers, exactly."""
        return coded.view(torch.bfloat16).float()


class Blockwise(Quantizer):
    """Numbers relative to the largest of their block, whose scale goes before them as a float32.

    If one number of a block is not finite, none is once decoded: the scale is not finite.
    """

    def __init__(self, block: int, narrow: torch.dtype) -> None:
        self.block = block
        self._narrow = narrow

    def encode(self, rows: Tensor) -> Tensor:
        """Return 4 bytes a block, then the narrow numbers."""
        blocks = rows.reshape(len(rows), -1, self.block)
        scales = self._scales(blocks.abs().amax(2))
        narrow = self._narrowed(blocks / scales[:, :, None])
        parts = scales.view(torch.uint8), narrow.view(len(rows), -1).view(torch.uint8)
        return torch.cat(parts, 1)

    def decode(self, coded: Tensor) -> Tensor:
        """Return each narrow number times its block's scale."""
        width = self.block * self._narrow.itemsize
        blocks = coded.shape[1] // (4 + width)
        scales = coded[:, : 4 * blocks].view(torch.float32)
        narrow = coded[:, 4 * blocks :].view(self._narrow).view(len(coded), blocks, self.block)
        return narrow.float().mul_(scales[:, :, None]).view(len(coded), -1)

    @abstractmethod
    def _scales(self, largest: Tensor) -> Tensor:
        """Return the divisor of each block's numbers."""

    @abstractmethod
    def _narrowed(self, relative: Tensor) -> Tensor:
        """Return the numbers in the narrow type."""


class Float16(Blockwise):
    """fp16 after a division by a power of two: 2 bytes, an error of at most 2**-11 of the number.

    Unless it is less than 2**-28 of the largest in its block of 1024. Nothing finite overflows,
    as it does in a plain cast from 65520 on.
    """

    def __init__(self) -> None:
        super().__init__(1024, torch.float16)

    def _scales(self, largest: Tensor) -> Tensor:
        exponents = torch.frexp(largest)[1] - _FP16_EXPONENT
        powers = torch.ldexp(torch.ones_like(largest), exponents.clamp(-126, 127))
        return torch.where(largest.isfinite(), powers, torch.nan)

    def _narrowed(self, relative: Tensor) -> Tensor:
        return relative.half()


class Int8(Blockwise):
    """Steps of 1/127 of the largest in a block of 256: 1 byte, an error of at most half a step.

    On a GPU by kernels of its own, and by torch's operations where Triton cannot compile them.
    """

    def __init__(self) -> None:
        super().__init__(256, torch.int8)
        self._has_kernels = True

    def encode(self, rows: Tensor) -> Tensor:
        """Return 4 bytes a block, then 1 byte a number."""
        coded = self._by_kernel("encode", rows)
        return super().encode(rows) if coded is None else coded

    def decode(self, coded: Tensor) -> Tensor:
        """Return each number times its block's scale."""
        rows = self._by_kernel("decode", coded)
        return super().decode(coded) if rows is None else rows

    def _by_kernel(self, name: Literal["encode", "decode"], given: Tensor) -> Tensor | None:
        """Return None where there is no kernel."""
        if not (given.is_cuda and self._has_kernels):
            return None
        try:
            from torchloom_threadlet.compression import int8_kernels  # imports Triton

            kernel = int8_kernels.encode if name == "encode" else int8_kernels.decode
            return kernel(given, self.block)
        except Exception as error:  # noqa: BLE001 - the compiler's, of whatever kind
            self._has_kernels = False
            _logger.warning(
                "int8 is coded by torch's operations, which take longer: %s", error_line(error)
            )
            return None

    def _scales(self, largest: Tensor) -> Tensor:
        # A bit less than a 127th, so that 127 scales never exceed the largest.
        scales = torch.nextafter(largest / _INT8_MOST, torch.zeros_like(largest))
        return torch.where(largest.isfinite(), scales.clamp_min(_LEAST), torch.nan)

    def _narrowed(self, relative: Tensor) -> Tensor:
        return relative.round_().clamp_(-_INT8_MOST, _INT8_MOST).nan_to_num_(0.0).to(torch.int8)


class Sharded:
    """Each share is summed in float32 by one rank, whose bytes all ranks then decode.

    So the error is that of two quantizations whatever the number of ranks, and all end with the
    same bits whatever the order of the sum.
    """

    is_whole = False

    def __init__(self, quantizer: Quantizer) -> None:
        self._quantizer = quantizer

    def reduce(self, tensor: Tensor, memory: Memory, peers: Peers) -> Reduced:
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
