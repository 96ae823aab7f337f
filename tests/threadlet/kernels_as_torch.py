"""Compares int8's kernels with torch's operations, in a process whose Triton is its interpreter.

Triton reads TRITON_INTERPRET when it is imported.
"""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from torchloom_threadlet.compression.quantizers import Blockwise, Int8

BLOCK = Int8().block
EDGES = [
    0.0,
    -0.0,
    2.0**-149,
    -(2.0**-126),
    torch.finfo(torch.float32).max,
    torch.inf,
    -torch.inf,
    torch.nan,
]
HALVES = torch.cat((torch.tensor([127.0]), torch.arange(BLOCK - 1) / 2 - 60.0)).view(1, -1)


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def bits(numbers):
    """Return the bits, those of all NaNs the same."""
    return torch.where(numbers.isnan(), torch.nan, numbers).cpu().view(torch.int32)


def assert_same_as_torchs(rows, on_gpu):
    int8 = Int8()
    coded, expected = int8.encode(on_gpu(rows)), Blockwise.encode(int8, rows)
    assert torch.equal(coded.cpu(), expected)
    assert torch.equal(bits(int8.decode(on_gpu(expected))), bits(Blockwise.decode(int8, expected)))
    assert int8._has_kernels


@st.composite
def rows_of_numbers(draw):
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 20)) * BLOCK
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    exponent = draw(st.sampled_from([-44, -38, -30, 0, 30, 37]))
    rows = (torch.randn(shape, generator=generator).double() * 10.0**exponent).float()
    rows.view(-1, BLOCK)[draw(st.integers(0, shape[1] // BLOCK - 1))] = draw(st.sampled_from(EDGES))
    for value in draw(st.lists(st.sampled_from(EDGES), max_size=3)):
        rows.view(-1)[draw(st.integers(0, rows.numel() - 1))] = value
    return rows


@given(rows=rows_of_numbers())
@example(rows=HALVES)
def in_the_interpreter(rows):
    assert_same_as_torchs(rows, lambda tensor: tensor.as_subclass(OnGpu))


if __name__ == "__main__":
    in_the_interpreter()
