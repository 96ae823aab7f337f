"""Complete checkpoints, and their bytes, each against its digest."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from torchloom_core.checkpoints.coverage import coverage_problem
from torchloom_core.checkpoints.installed import ENCODINGS, installed
from torchloom_core.checkpoints.layout import (
    FORMAT,
    MANIFEST,
    Folder,
    Manifest,
    Piece,
    Shard,
    manifest_json,
    read_folder,
    shard_file,
    tensors_file,
)
from torchloom_core.checkpoints.storage import Storage
from torchloom_core.floor.errors import CheckpointError

_T = TypeVar("_T")
_LONGEST_JSON = 1 << 28


def complete_folders(storage: Storage) -> list[Folder]:
    """Return the complete checkpoints of a place, the newest first."""
    found = sorted(filter(None, map(read_folder, storage.folders())), reverse=True)
    return [folder for folder in found if MANIFEST in storage.files(str(folder))]


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """Return the manifest of a checkpoint; CheckpointError if it cannot be used."""
    found, data = _decoded(storage, folder, MANIFEST, Manifest)
    if found.format > FORMAT:
        raise _fault(storage, folder, MANIFEST, f"need format <= {FORMAT}, was {found.format}")
    if data != manifest_json(found):
        raise _fault(storage, folder, MANIFEST, "its sha256 is not that of its content")
    return found


class Checkpoint:
    """A complete checkpoint, opened from one place or several, each byte against its digest.

    A file that one source lacks or has damaged is read from the next.

    Parameters
    ----------
    sources : sequence of Storage
        The places that may have it or a part of it, the preferred first.
    folder : str
        Its folder, the same in all places.

    Attributes
    ----------
    passed_over : list of str
        The damaged files in place of which another source's were read, a line each.

    Raises
    ------
    CheckpointError
        If a file is missing, damaged or of a later version in all sources.
    """

    def __init__(self, sources: Sequence[Storage], folder: str) -> None:
        self.folder = folder
        self.passed_over: list[str] = []
        self._sources: list[tuple[Storage, set[str]]] = []
        for source in sources:
            try:
                self._sources.append((source, set(source.files(folder))))
            except OSError as error:
                self.passed_over.append(f"{source.name}: cannot be read: {_reason(error)}")
        self.manifest = self._first(MANIFEST, lambda source: read_manifest(source, folder))
        ranks = [one.rank for one in self.manifest.shards]
        if not ranks or len({*ranks}) < len(ranks):
            raise self._bad("need a shard of each rank once")
        self.shards = [self._shard(one.rank, one.sha256) for one in self.manifest.shards]
        if problem := coverage_problem(piece for _, piece in self.pieces.values()):
            raise self._bad(problem)

    @property
    def is_small(self) -> bool:
        """Whether the tensors are rounded."""
        return bool(self.manifest.base)

    @cached_property
    def pieces(self) -> dict[tuple[str, tuple[int, ...]], tuple[int, Piece]]:
        """The pieces by name and offsets, each with the rank that has it; of equals the first."""
        found: dict[tuple[str, tuple[int, ...]], tuple[int, Piece]] = {}
        for shard in self.shards:
            for piece in shard.pieces:
                found.setdefault((piece.name, piece.offsets), (shard.rank, piece))
        return found

    def read(self, rank: int, piece: Piece) -> bytearray:
        """Return the bytes of a piece; CheckpointError if no source has them unchanged."""
        data = bytearray(piece.bytes)
        self.read_into(rank, piece, memoryview(data))
        return data

    def read_into(self, rank: int, piece: Piece, view: memoryview) -> None:
        """Read the bytes of a piece into a view of that length; several threads may do so.

        Raises CheckpointError if no source has them unchanged; the view may be overwritten then.
        """
        if len(view) != piece.bytes:
            raise self._bad(f"{piece.name}: need {len(view)} bytes, was {piece.bytes}")
        file = tensors_file(rank)
        if not piece.encoded:
            self._first(file, lambda source: _read_piece(source, self.folder, file, piece, view))
            return
        data = memoryview(bytearray(piece.encoded))
        self._first(file, lambda source: _read_piece(source, self.folder, file, piece, data))
        self._decode(piece, data, view)

    def verify(self) -> Iterator[int]:
        """Read and check all tensors; yield the bytes of each. Raises CheckpointError."""
        for shard in self.shards:
            for piece in shard.pieces:
                self.read(shard.rank, piece)
                yield piece.bytes

    @cached_property
    def _base(self) -> "Checkpoint":
        name = self.manifest.base
        if read_folder(name) is None:
            raise CheckpointError("it names no base")
        base = Checkpoint([source for source, _ in self._sources], name)
        if base.is_small:
            raise CheckpointError("its base is small, too")
        base.passed_over = self.passed_over
        return base

    def _read_base(self, piece: Piece, view: memoryview) -> None:
        found = self._base.pieces.get((piece.name, piece.offsets))
        if found is None or found[1].bytes != piece.bytes:
            raise CheckpointError(f"{self._base.folder} has it not")
        self._base.read_into(*found, view)

    def _decode(self, piece: Piece, data: memoryview, view: memoryview) -> None:
        try:
            small = installed(ENCODINGS, "small")
            if small.needs_base(data):
                self._read_base(piece, view)
            small.decode(data, view, view)
        except CheckpointError as error:
            raise self._bad(f"{piece.name}: {error}") from None

    def _shard(self, rank: int, sha256: str) -> Shard:
        file = shard_file(rank)

        def read(source: Storage) -> Shard:
            shard, data = _decoded(source, self.folder, file, Shard)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise _fault(source, self.folder, file, f"its sha256 is not {sha256[:12]}...")
            return shard

        return self._first(file, read)

    def _first(self, file: str, read: Callable[[Storage], _T]) -> _T:
        """Return what can be read of a file from the first source that has it whole."""
        problems: list[CheckpointError] = []
        for source, files in self._sources:
            if file not in files:
                continue
            try:
                found = read(source)
            except CheckpointError as error:
                problems.append(error)
                continue
            self.passed_over += map(str, problems)
            return found
        if problems:
            raise problems[0]
        raise CheckpointError(f"{self._places()}/{self.folder}/{file}: it is missing")

    def _bad(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self._places()}/{self.folder}: {text}")

    def _places(self) -> str:
        return ", ".join(source.name for source, _ in self._sources) or "no source"


def _read_piece(source: Storage, folder: str, file: str, piece: Piece, view: memoryview) -> None:
    try:
        with source.open(f"{folder}/{file}") as opened:
            opened.seek(piece.at)
            at = 0
            while at < len(view) and (count := opened.readinto(view[at:])):  # type: ignore[attr-defined]
                at += count
    except OSError as error:
        raise _fault(source, folder, file, f"cannot be read: {_reason(error)}") from None
    if at < len(view):
        raise _fault(source, folder, file, f"{piece.name}: it is cut off")
    if not piece.has_digest_of(view):
        raise _fault(source, folder, file, f"{piece.name}: its bytes have changed since the save")


def _decoded(storage: Storage, folder: str, file: str, kind: type[_T]) -> tuple[_T, bytes]:
    """Return the content of a JSON file, and its bytes."""
    try:
        with storage.open(f"{folder}/{file}") as opened:
            data = opened.read(_LONGEST_JSON + 1)
        if len(data) > _LONGEST_JSON:
            raise _fault(storage, folder, file, f"need <= {_LONGEST_JSON} bytes, was more")
        return msgspec.json.decode(data, type=kind), data
    except OSError as error:
        why = f"cannot be read: {_reason(error)}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)
    raise _fault(storage, folder, file, why)


def _fault(storage: Storage, folder: str, file: str, text: str) -> CheckpointError:
    return CheckpointError(f"{storage.name}/{folder}/{file}: {text}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
