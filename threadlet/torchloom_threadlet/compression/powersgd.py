"""A matrix as the product of two thin ones, with error feedback.

Vogels et al., PowerSGD, 2019 (arXiv 1905.13727). torch's orthogonalization is used as it is; its
hooks are not, for they want DDP's buckets, and a residual that is changed whether or not the
step is committed.
"""

import math

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from torchloom_threadlet.compression.codecs import Memory
from torchloom_threadlet.compression.collectives import Peers, Reduction, Sum
from torchloom_threadlet.compression.sharded import Sharded

_EPSILON = 1e-8
_SEED = 20190531


class PowerSGD:
    """Sums rank-``rank`` approximations of the ranks' matrices.

    A tensor of two dimensions or more is a matrix of its first by all others; a flat one, such as
    DDP's buckets, is filled up to a square. What would not get smaller goes to ``otherwise``.

    Parameters
    ----------
    rank : int
        Columns of the factors, at least 1.
    otherwise : Sharded
        For vectors and what is too small.
    """

    def __init__(self, rank: int, otherwise: Sharded) -> None:
        if rank < 1:
            raise ValueError(f"need powersgd_rank >= 1, was {rank}")
        self._rank = rank
        self._otherwise = otherwise

    def reduce(
        self, tensor: Tensor, memory: Memory, peers: Peers
    ) -> Reduction[tuple[Tensor, Memory]]:
        """Sum the ranks' projections on the columns that their sum points to."""
        rows, columns = _matrix(tensor)
        rank = min(self._rank, rows, columns)
        # A factor is sent twice and each time four bytes a number; half of that is bf16's.
        if 4 * rank * (2 * rows + columns) >= 2 * tensor.numel():
            return (yield from self._otherwise.reduce(tensor, memory, peers))
        flat = memory.added_to(tensor.view(-1))
        padding = rows * columns - flat.numel()
        matrix = torch.nn.functional.pad(flat, (0, padding)) if padding else flat
        matrix = matrix.view(rows, columns)

        basis = _start(memory.basis, columns, rank, matrix)
        left = yield Sum(matrix @ basis)
        if not left.isfinite().all():
            return torch.full_like(tensor, torch.nan), memory
        # Only one rank's arithmetic may count here: another build of LAPACK, or another number
        # of threads, would give other bits.
        if peers.rank == 0:
            _orthogonalize(left[None], _EPSILON)  # type: ignore[no-untyped-call]
        else:
            left = torch.zeros_like(left)
        left = yield Sum(left)
        mine = matrix.t() @ left
        right = yield Sum(mine.clone())
        if not right.isfinite().all():
            return torch.full_like(tensor, torch.nan), memory

        residual = matrix.addmm_(left, mine.t(), alpha=-1.0).view(-1)[: flat.numel()]
        total = _product(left, right).view(-1)[: flat.numel()].view(tensor.shape)
        return total, Memory(residual.clone() if padding else residual, right)


def _matrix(tensor: Tensor) -> tuple[int, int]:
    """Return the rows and columns of the matrix that ``tensor`` is taken for."""
    if tensor.dim() > 1:
        return tensor.shape[0], tensor.numel() // tensor.shape[0]
    side = math.isqrt(tensor.numel() - 1) + 1
    return side, side


def _start(basis: Tensor | None, columns: int, rank: int, like: Tensor) -> Tensor:
    """Return orthonormal columns to begin with: the last factor's, or the same ones on all ranks.

    They may differ from rank to rank, as where one has just joined: the projection is still one
    on common columns, if on better ones a step later.
    """
    if basis is None or basis.shape != (columns, rank):
        generator = torch.Generator().manual_seed(_SEED)
        basis = torch.randn(columns, rank, generator=generator).to(like.device)
    start = basis.clone()
    _orthogonalize(start[None], _EPSILON)  # type: ignore[no-untyped-call]
    return start


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.T``, added up column by column.

    A matrix product may add in another order, or fuse, on another machine; this may not.
    """
    total = left[:, :1] * right[:, 0]
    for column in range(1, left.shape[1]):
        total += left[:, column : column + 1] * right[:, column]
    return total
