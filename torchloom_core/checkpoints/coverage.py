"""Whether pieces make up whole tensors: a part that no piece has would be loaded as garbage."""

import math
from collections.abc import Iterable

from torchloom_core.checkpoints.layout import Piece


def coverage_problem(pieces: Iterable[Piece]) -> str:
    """Return why some pieces do not make up their tensors, each place once; "" if they do."""
    tensors: dict[str, list[Piece]] = {}
    for piece in pieces:
        tensors.setdefault(piece.name, []).append(piece)
    for name, parts in tensors.items():
        if problem := _problem(parts):
            return f"{name}: {problem}"
    return ""


def _problem(parts: list[Piece]) -> str:
    first, count = parts[0], 0
    item_bytes = 0
    for piece in parts:
        if (piece.shape, piece.dtype) != (first.shape, first.dtype):
            return "its pieces have different shapes or types"
        if not len(piece.shape) == len(piece.offsets) == len(piece.sizes):
            return "a piece has another number of dimensions"
        places = zip(piece.shape, piece.offsets, piece.sizes, strict=True)
        if any(begin + size > whole for whole, begin, size in places):
            return "a piece is outside of it"
        values = math.prod(piece.sizes)
        count += values
        if values:
            item_bytes = item_bytes or piece.bytes // values
        if piece.bytes != values * item_bytes:
            return "a piece has more or fewer bytes than values"
    if count != math.prod(first.shape):
        return "its pieces do not cover it"
    return "its pieces overlap" if _overlap(parts) else ""


def _overlap(parts: list[Piece]) -> bool:
    """Return whether two pieces have a value in common."""
    going_on: list[Piece] = []
    for piece in sorted((one for one in parts if one.bytes), key=lambda one: one.offsets):
        going_on = [one for one in going_on if one.offsets[0] + one.sizes[0] > piece.offsets[0]]
        for other in going_on:
            dims = zip(piece.offsets, piece.sizes, other.offsets, other.sizes, strict=True)
            if all(a < d + e and d < a + b for a, b, d, e in dims):
                return True
        going_on.append(piece)
    return False
