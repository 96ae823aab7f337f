"""Low-rank factors of matrices, with error feedback.

Vogels et al., PowerSGD, 2019 (arXiv 1905.13727). torch's hooks do not fit: they require DDP's own
buckets, and change the residual whether or not the step is committed. Nor does their
orthogonalization: for one or two columns it is Gram-Schmidt, whose second column is noise, and not
orthogonal to the first, if the matrix has rank one; the sum then is twice as large.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchloom_threadlet.compression.codecs import Memory, Reduced
from torchloom_threadlet.compression.collectives import Peers, Sum
from torchloom_threadlet.compression.quantizers import Sharded

_SEED = 20190531


@dataclass(frozen=True)
class Piece:
    """A range of a flat tensor, used as a matrix; the last row may not be full.

    ``rows``, ``columns``: the matrix's; a vector has one row.
    """

    start: int
    numbers: int
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        """The start of the next piece."""
        return self.start + self.numbers


class Pieces:
    """Finds the matrices in the tensors that DDP reduces.

    ``parameters``: the model's, in its own order; DDP's buckets contain consecutive ones.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._shapes = [tuple(each.shape) for each in parameters if each.requires_grad]
        self._known: dict[tuple[int, ...], list[Piece]] = {}

    def of(self, tensor: Tensor) -> list[Piece]:
        """Return the pieces of ``tensor``, in order, without a gap."""
        shape = tuple(tensor.shape)
        if shape not in self._known:
            self._known[shape] = self._cut(shape)
        return self._known[shape]

    def _cut(self, shape: tuple[int, ...]) -> list[Piece]:
        if len(shape) > 1:
            return _in_a_row([shape])
        (numbers,) = shape
        if found := self._run_of(numbers):
            return _in_a_row(found)
        side = math.isqrt(numbers - 1) + 1
        return [Piece(0, numbers, side, side)]

    def _run_of(self, numbers: int) -> Sequence[tuple[int, ...]]:
        """Return the last consecutive parameters with this many numbers in total; none if none has.

        If another range has the same length, the matrices are worse, but the sum is still correct.
        """
        first, total = len(self._shapes), 0
        for last in range(len(self._shapes), 0, -1):
            while total < numbers and first > 0:
                first -= 1
                total += math.prod(self._shapes[first])
            if total == numbers:
                return self._shapes[first:last]
            total -= math.prod(self._shapes[last - 1])
        return ()


def _in_a_row(shapes: Sequence[tuple[int, ...]]) -> list[Piece]:
    pieces, start = [], 0
    for shape in shapes:
        numbers = math.prod(shape)
        rows = shape[0] if len(shape) > 1 else 1
        pieces.append(Piece(start, numbers, rows, numbers // rows))
        start += numbers
    return pieces


class PowerSGD:
    """Sums rank-``rank`` approximations of the ranks' matrices.

    ``rank``: columns of the factors, at least 1.
    ``otherwise``: sums a tensor without a matrix whose factors would be smaller. In a tensor with
    such matrices the other parts are sent with the first factors, uncompressed.
    """

    is_whole = True  # cutting would split its matrices, and their factors would not get smaller

    def __init__(self, rank: int, pieces: Pieces, otherwise: Sharded) -> None:
        if rank < 1:
            raise ValueError(f"need powersgd_rank >= 1, was {rank}")
        self._rank = rank
        self._pieces = pieces
        self._otherwise = otherwise

    def reduce(self, tensor: Tensor, memory: Memory, peers: Peers) -> Reduced:
        """Sum the ranks' projections on the columns of their common sum."""
        pieces = self._pieces.of(tensor)
        factored = [piece for piece in pieces if self._gains(piece)]
        plain = [piece for piece in pieces if not self._gains(piece)]
        if not factored:
            return (yield from self._otherwise.reduce(tensor, memory, peers))
        unsent = memory.added_to(tensor.view(-1))
        matrices = [_matrix(unsent, piece) for piece in factored]
        basis = memory.basis
        if basis is None:
            basis = self._first_basis(factored, tensor.device)
        # They may differ between ranks, as after a rank has joined: the projection still uses
        # common columns, if better ones only a step later.
        bases = _orthonormal(self._right(basis, factored))

        projected = [m @ b for m, b in zip(matrices, bases, strict=True)]
        rest = [unsent[piece.start : piece.stop] for piece in plain]
        first = yield Sum(_flat([*projected, *rest]))
        is_finite = first.isfinite().all()
        left, *summed = torch.split_with_sizes(
            first, [sum(one.numel() for one in projected), *(piece.numbers for piece in plain)]
        )
        # Only one rank's arithmetic may count here: another build of LAPACK, or another number
        # of threads, gives other bits.
        if peers.rank == 0:
            left = _flat(_orthonormal(self._left(left, factored)))
        else:
            left = torch.zeros_like(left)
        lefts = self._left((yield Sum(left)), factored)
        mine = _flat([m.t() @ each for m, each in zip(matrices, lefts, strict=True)])
        right = yield Sum(mine.clone())
        # Selected, not branched on: a GPU would have to be waited for.
        is_finite &= right.isfinite().all()

        total = torch.empty_like(unsent)
        rights, own = self._right(right, factored), self._right(mine, factored)
        for piece, a, b, sent in zip(factored, lefts, rights, own, strict=True):
            total[piece.start : piece.stop] = _product(a, b).view(-1)[: piece.numbers]
            unsent[piece.start : piece.stop] -= (a @ sent.t()).view(-1)[: piece.numbers]
        for piece, part in zip(plain, summed, strict=True):
            total[piece.start : piece.stop] = part
            unsent[piece.start : piece.stop] = 0.0
        residual = torch.zeros_like(unsent) if memory.residual is None else memory.residual
        total = torch.where(is_finite, total, torch.nan)
        unsent = torch.where(is_finite, unsent, residual)
        return total.view(tensor.shape), Memory(unsent, torch.where(is_finite, right, basis))

    def _columns(self, piece: Piece) -> int:
        return min(self._rank, piece.rows, piece.columns)

    def _gains(self, piece: Piece) -> bool:
        # The left factor is sent twice. Saving less than half of the bytes is not worth it.
        factors = self._columns(piece) * (2 * piece.rows + piece.columns)
        return 2 * factors < piece.numbers

    def _left(self, flat: Tensor, pieces: Sequence[Piece]) -> list[Tensor]:
        return _split(flat, [(piece.rows, self._columns(piece)) for piece in pieces])

    def _right(self, flat: Tensor, pieces: Sequence[Piece]) -> list[Tensor]:
        return _split(flat, [(piece.columns, self._columns(piece)) for piece in pieces])

    def _first_basis(self, pieces: Sequence[Piece], device: torch.device) -> Tensor:
        """Return right factors to begin with, the same on all ranks."""
        numbers = sum(piece.columns * self._columns(piece) for piece in pieces)
        generator = torch.Generator().manual_seed(_SEED)
        first = torch.randn(numbers, generator=generator, dtype=torch.float32, device="cpu")
        return first.to(device)


def _matrix(flat: Tensor, piece: Piece) -> Tensor:
    missing = piece.rows * piece.columns - piece.numbers
    numbers = flat[piece.start : piece.stop]
    return (pad(numbers, (0, missing)) if missing else numbers).view(piece.rows, piece.columns)


def _flat(matrices: Sequence[Tensor]) -> Tensor:
    return torch.cat([matrix.reshape(-1) for matrix in matrices])


def _split(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    parts = torch.split_with_sizes(flat, [rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _orthonormal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return matrices of orthonormal columns with the same span as those of ``matrices``."""
    return [torch.linalg.qr(matrix).Q for matrix in matrices]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.T``, added up column by column.

    A matrix product may add in another order, or fuse, on another machine; this does not.
    """
    total = left[:, :1] * right[:, 0]
    for column in range(1, left.shape[1]):
        total += left[:, column : column + 1] * right[:, column]
    return total
