"""What a checkpoint consists of: a folder with a manifest, and two files of each rank.

``<generation>-step-<step>-<token>/`` has ``rank-<k>.bin``, the bytes of its tensors one after
another, ``rank-<k>.json``, a :class:`Shard` that names them, and ``manifest.json``, a
:class:`Manifest`. The manifest is written last: a folder without one is no checkpoint. No folder is
written to again.

The folder of a small checkpoint ends in ``.small``: its tensors are encoded, as
:mod:`torchloom_core.checkpoints.small` says, some as differences to those of its *base*.
"""

import hashlib
import re
from typing import Any, NamedTuple

import msgspec
import xxhash

from torchloom_core.wire.limits import Count, Rank, Stamp

FORMAT = 2
"""1: the digest of a piece is its SHA-256."""

MANIFEST = "manifest.json"
MOST_GENERATION = 999_999

_TENSORS = ".bin"
_RANKS = re.compile(r"rank-\d{1,7}\.(bin|json)")
_SMALL = ".small"
_FOLDER = re.compile(r"(\d{4,6})-step-(\d{10,16})-([0-9a-f]{8})(\.small)?")


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, or this rank's part of one.

    Attributes
    ----------
    name : str
        Its name in the state, such as ``model.layers.0.weight``.
    dtype : str
        As torch names it, such as ``float32``.
    shape : tuple of int
        Of the whole tensor.
    offsets, sizes : tuple of int
        Where this part begins in it, and its shape.
    at : int
        Where its bytes begin in the rank's file.
    bytes : int
        How many bytes the tensor has.
    encoded : int
        How many there are in the file, if it is encoded; 0: the tensor's own.
    xxh3 : str
        The digest of the bytes in the file, by XXH3 of 128 bits, in hexadecimal digits.
    sha256 : str
        The digest in format 1; "" otherwise.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...]
    offsets: tuple[Count, ...]
    sizes: tuple[Count, ...]
    at: Count
    bytes: Count
    encoded: Count = 0
    xxh3: str = ""
    sha256: str = ""

    @property
    def end(self) -> int:
        """Where its bytes end in the rank's file."""
        return self.at + (self.encoded or self.bytes)

    def has_digest_of(self, data: memoryview) -> bool:
        """Return whether these are the bytes of the file, unchanged."""
        if self.sha256:
            return hashlib.sha256(data).hexdigest() == self.sha256
        return xxhash.xxh3_128_hexdigest(data) == self.xxh3


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saved: its pieces, and its values that are no tensors.

    ``own`` belongs to the rank, such as its random states; ``shared`` is the same on all ranks.
    """

    rank: Rank
    pieces: tuple[Piece, ...]
    own: Any = None
    shared: Any = None


class ShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's two files: bytes of its tensors, and the digest of its ``.json``."""

    rank: Rank
    bytes: Count
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a checkpoint is complete, and what it consists of.

    Of two checkpoints the one with the larger generation is newer, of equal ones that with the
    larger step, whatever the clock says: a run that goes back begins a generation.
    ``base``: the folder of the checkpoint to which a small one has differences; "" for any other.
    ``sha256``: of its JSON with "" here.
    """

    format: Count = FORMAT
    generation: Count
    step: Count
    run: str = ""
    saved_ns: Stamp
    base: str = ""
    shards: tuple[ShardFile, ...]
    sha256: str = ""

    @property
    def bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(shard.bytes for shard in self.shards)


def manifest_json(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file, with its digest."""
    content = msgspec.json.encode(msgspec.structs.replace(manifest, sha256=""))
    digest = hashlib.sha256(content).hexdigest()
    return msgspec.json.encode(msgspec.structs.replace(manifest, sha256=digest))


class Folder(NamedTuple):
    """The name of a checkpoint's folder; the token tells two savers apart.

    Of two with the same step the exact one is newer than the small one.
    """

    generation: int
    step: int
    token: str
    is_exact: bool = True

    def __str__(self) -> str:
        name = f"{self.generation:04d}-step-{self.step:010d}-{self.token}"
        return name if self.is_exact else name + _SMALL


def read_folder(name: str) -> Folder | None:
    """Return what a folder's name says, or None if it is no checkpoint's."""
    found = _FOLDER.fullmatch(name)
    return Folder(int(found[1]), int(found[2]), found[3], not found[4]) if found else None


def tensors_file(rank: int) -> str:
    """Return the name of a rank's tensors."""
    return f"rank-{rank}{_TENSORS}"


def shard_file(rank: int) -> str:
    """Return the name of a rank's :class:`Shard`."""
    return f"rank-{rank}.json"


def is_tensors_file(name: str) -> bool:
    """Return whether a file has tensors."""
    return name.endswith(_TENSORS)


def is_file_of_checkpoint(name: str) -> bool:
    """Return whether a checkpoint has files of this name."""
    return name == MANIFEST or _RANKS.fullmatch(name) is not None
