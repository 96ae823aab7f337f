"""What a checkpoint holds, for an export: its values, and its tensors whole, one at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchloom_core.checkpoints.layout import Piece
from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.json_state import decode, dtype_named


class Content:
    """The shared content of a checkpoint, of which no tensor is read before it is asked for.

    Parameters
    ----------
    checkpoint : Checkpoint
        Where it is read from; each byte is compared with its digest.
    read : callable
        Takes the bytes of each piece that was read.

    Raises
    ------
    CheckpointError
        If there is no model.
    """

    def __init__(self, checkpoint: Checkpoint, read: Callable[[int], None]) -> None:
        self._checkpoint, self._note = checkpoint, read
        self._pieces: dict[str, list[tuple[int, Piece]]] = {}
        for rank, piece in checkpoint.pieces.values():
            self._pieces.setdefault(piece.name, []).append((rank, piece))
        self._tensors = {name: self._empty(name) for name in self._pieces}
        self._names = {id(tensor): name for name, tensor in self._tensors.items()}
        self.values: dict[str, Any] = decode(checkpoint.shards[0].shared, self._tensors)
        if not any(self.kinds("model")):
            raise CheckpointError(f"{checkpoint.folder}: need a model, has none")

    def kinds(self, kind: str) -> Iterator[str]:
        """Yield the names of its models (``model``) or optimizers (``optim``)."""
        for name in self.values:
            if name == kind or (name.startswith(kind) and name.removeprefix(kind).isdecimal()):
                yield name

    def whole(self, empty: Tensor) -> Tensor:
        """Return the tensor that is in the place of this one without content; CheckpointError."""
        name = self._names[id(empty)]
        tensor = torch.empty(empty.shape, dtype=empty.dtype, device="cpu")
        for rank, piece in self._pieces[name]:
            data = self._checkpoint.read(rank, piece)
            if piece.bytes:
                part = torch.frombuffer(data, dtype=empty.dtype).reshape(piece.sizes)
                place = tensor
                for dim, (begin, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
                    place = place.narrow(dim, begin, size)
                place.copy_(part)
            self._note(piece.bytes)
        return tensor

    def _empty(self, name: str) -> Tensor:
        """Return a tensor without content; CheckpointError if the pieces do not cover it."""
        pieces = [piece for _, piece in self._pieces[name]]
        first = pieces[0]
        empty = torch.empty(first.shape, dtype=dtype_named(first.dtype), device="meta")
        if sum(piece.bytes for piece in pieces) != empty.numel() * empty.element_size():
            raise CheckpointError(f"{self._checkpoint.folder}: {name}: a part of it is missing")
        return empty
