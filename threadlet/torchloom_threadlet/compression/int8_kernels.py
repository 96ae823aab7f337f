"""The mode int8 on a GPU: one kernel that encodes and one that decodes, in Triton.

Both give the bits that torch's operations give, which pass over the GPU's memory several times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCKS_A_PROGRAM = 16
_SCALE_BYTES = 4
_OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}


def encode(rows: Tensor, block: int) -> Tensor:
    """Return (rows, bytes) of float32 (rows, numbers): the scales of a row, then its numbers.

    ``block``: how many numbers share a scale, a power of two that divides a row.
    """
    blocks = rows.shape[1] // block
    width = blocks * (_SCALE_BYTES + block)
    coded = torch.empty((len(rows), width), dtype=torch.uint8, device=rows.device)
    with torch.cuda.device_of(rows):
        _encode[_grid(len(rows), blocks)](
            rows.contiguous(),
            coded.view(torch.float32),
            coded.view(torch.int8),
            blocks,
            BLOCK=block,
            BLOCKS=_BLOCKS_A_PROGRAM,
            **_OPTIONS,
        )
    return coded


def decode(coded: Tensor, block: int) -> Tensor:
    """Return float32 (rows, numbers) of what :func:`encode` returned."""
    blocks = coded.shape[1] // (_SCALE_BYTES + block)
    coded = coded.contiguous()
    rows = torch.empty((len(coded), blocks * block), dtype=torch.float32, device=coded.device)
    with torch.cuda.device_of(coded):
        _decode[_grid(len(rows), blocks)](
            coded.view(torch.float32),
            coded.view(torch.int8),
            rows,
            blocks,
            BLOCK=block,
            BLOCKS=_BLOCKS_A_PROGRAM,
            **_OPTIONS,
        )
    return rows


def _grid(rows: int, blocks: int) -> tuple[int, int]:
    return triton.cdiv(blocks, _BLOCKS_A_PROGRAM), rows


@triton.jit(do_not_specialize=["blocks"])
def _encode(numbers, scales, narrow, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    is_there = place < blocks
    at = place[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    width = blocks * (4 + BLOCK)
    given = tl.load(numbers + row * blocks * BLOCK + at, mask=is_there[:, None], other=0.0)
    # Without the sign, the bits of floats have the floats' order, with infinity and NaN the last.
    most = tl.max(given.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    is_finite = most < 0x7F800000
    scale = tl.div_rn(most.to(tl.float32, bitcast=True), 127.0)
    below = tl.maximum(scale.to(tl.int32, bitcast=True), 1) - 1  # the next float towards 0
    scale = tl.maximum(below.to(tl.float32, bitcast=True), 1.1754943508222875e-38)
    scale = tl.where(is_finite, scale, float("nan"))
    # At 1.5 * 2**23 floats are whole numbers: the sum is rounded to one, halves to the even one.
    whole = tl.div_rn(given, scale[:, None] + tl.zeros_like(given)) + 12582912.0 - 12582912.0
    whole = tl.minimum(tl.maximum(whole, -127.0), 127.0)
    whole = tl.where(is_finite[:, None], whole, 0.0)
    tl.store(scales + row * (width // 4) + place, scale, mask=is_there)
    start = row * width + blocks * 4
    tl.store(narrow + start + at, whole.to(tl.int8), mask=is_there[:, None])


@triton.jit(do_not_specialize=["blocks"])
def _decode(scales, narrow, numbers, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    is_there = place < blocks
    at = place[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    width = blocks * (4 + BLOCK)
    scale = tl.load(scales + row * (width // 4) + place, mask=is_there, other=0.0)
    start = row * width + blocks * 4
    whole = tl.load(narrow + start + at, mask=is_there[:, None], other=0)
    tl.store(
        numbers + row * blocks * BLOCK + at,
        whole.to(tl.float32) * scale[:, None],
        mask=is_there[:, None],
    )
