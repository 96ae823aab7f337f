"""A rank's part of a small checkpoint: each tensor is encoded when it is written."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import xxhash

from torchloom_core.checkpoints.installed import ENCODINGS, installed
from torchloom_core.checkpoints.layout import Folder, Piece
from torchloom_threadlet.checkpoint.writer.storing import Part


class SmallPart(Part):
    """A part that is encoded.

    Parameters
    ----------
    part : Part
        What is encoded.
    base : mapping
        The bytes of the base's tensors, by name and offsets; what it lacks is stored without it.
    """

    def __init__(self, part: Part, base: Mapping[tuple[str, tuple[int, ...]], bytes]) -> None:
        super().__init__(part.order, part.slot)
        order = part.order
        self.folder = str(Folder(order.generation, order.step, order.token, is_exact=False))
        self.base, self.bytes = order.base, 0
        self._base, self._pieces = base, list[Piece]()

    def tensors(self) -> Iterator[memoryview]:
        """Yield the encoded tensors, one after another; once."""
        shard = self.shard()
        trained, small = trained_weights(shard.shared), installed(ENCODINGS, "small")
        for piece in shard.pieces:
            base = self._base.get((piece.name, piece.offsets))
            data = small.encode(
                self.tensor(piece),
                piece.dtype,
                small.role_of(piece.name, trained),
                None if base is None else memoryview(base),
            ).data
            digest = xxhash.xxh3_128_hexdigest(data)
            self._pieces.append(
                msgspec.structs.replace(piece, at=self.bytes, encoded=len(data), xxh3=digest)
            )
            self.bytes += len(data)
            yield memoryview(data)

    def described(self) -> bytes:
        """Return the JSON of the :class:`Shard`, once all tensors were written."""
        shard = msgspec.structs.replace(self.shard(), pieces=tuple(self._pieces))
        return msgspec.json.encode(shard)


def trained_weights(shared: Any) -> set[str]:
    """Return the names of the weights that optimizers change, from what all ranks share."""
    groups = [
        group
        for name, state in shared.items()
        if name.startswith("optim") and isinstance(state, dict)
        for group in state.get("groups", ())
    ]
    found = set()
    for weight in (name for group in groups for name in group["params"]):
        number, colon, rest = weight.partition(":")
        found.add(f"model{number}.{rest}" if colon else f"model.{weight}")
    return found
