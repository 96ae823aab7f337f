"""Pieces that do not make up their tensor are refused: garbage would be loaded in silence."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.checkpoints.coverage import coverage_problem
from torchloom_core.checkpoints.layout import Piece


def piece(offsets, sizes, *, shape=(4, 6), dtype="float32", size=None):
    values = 1
    for one in sizes:
        values *= one
    size = 4 * values if size is None else size
    return Piece(name="w", dtype=dtype, shape=shape, offsets=offsets, sizes=sizes, at=0, bytes=size)


@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=3, unique=True),
    st.lists(st.integers(1, 5), min_size=0, max_size=3, unique=True),
    st.randoms(use_true_random=False),
)
def test_any_grid_of_pieces_is_whole_and_none_may_be_missing_or_twice(rows, columns, rng):
    cuts = [[0, *sorted(rows), 6], [0, *sorted(columns), 6]]
    spans = [[(a, b - a) for a, b in itertools.pairwise(cut)] for cut in cuts]
    grid = [piece((r, c), (h, w), shape=(6, 6)) for (r, h) in spans[0] for (c, w) in spans[1]]
    rng.shuffle(grid)
    assert coverage_problem(grid) == ""
    assert (len(grid) == 1) or "cover" in coverage_problem(grid[1:])
    assert coverage_problem([*grid, grid[0]])


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([piece((0, 0), (2, 6))], "cover"),
        ([piece((0, 0), (2, 6)), piece((1, 0), (2, 6))], "overlap"),
        ([piece((0, 1), (4, 6))], "outside"),
        ([piece((0,), (24,))], "dimensions"),
        ([piece((0, 0), (4, 6), size=95)], "bytes"),
        ([piece((0, 0), (2, 6)), piece((2, 0), (2, 6), dtype="int32")], "different"),
        ([piece((0, 0), (0, 0))], "cover"),
        ([piece((), (), shape=()), piece((), (), shape=())], "cover"),
    ],
)
def test_a_fault_is_named(pieces, problem):
    assert problem in coverage_problem(pieces)


def test_numbers_and_empty_tensors_are_whole():
    assert coverage_problem([piece((), (), shape=())]) == ""
    assert coverage_problem([piece((0, 0), (0, 6), shape=(0, 6))]) == ""
