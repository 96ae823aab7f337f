"""Checkpoints in an object store, or in whatever else fsspec has a URL for."""

import errno
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, BinaryIO, cast

from torchloom_core.checkpoints.layout import MANIFEST
from torchloom_core.floor.errors import CheckpointError

PART_BYTES = 16 << 20
"""A request carries at least so much of a large file and less than twice as much.

S3 takes 10,000 parts of a file.
"""

_EXTRA = 'need the extra object-store: pip install "torchloom[object-store]"'
_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}


class ObjectStore:
    """A :class:`Storage` in which a file is there once its last byte has arrived.

    It has no locks: two runs may save in one place, each in folders of its own.

    Parameters
    ----------
    url : str
        As fsspec has them: ``s3://bucket/run-7``. Where the store is and the credentials come from
        its own settings, as ``AWS_ENDPOINT_URL_S3``.

    Raises
    ------
    CheckpointError
        If fsspec does not know the URL, or the package for it is not installed.
    """

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._store, self._root = _opened(url)

    def folders(self) -> list[str]:
        """Return the names of the folders."""
        return self._names("", "directory")

    def files(self, folder: str) -> list[str]:
        """Return the names of a folder's files."""
        return self._names(f"/{folder}", "file")

    def open(self, name: str) -> BinaryIO:
        """Open a file to read; each ``readinto`` is a request for a range."""
        return cast(BinaryIO, _RangeReader(self._store, self._path(name), self._url(name)))

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file by one request, or a large one in parts that count once all are there."""
        path, url, rest = self._path(name), self._url(name), iter(parts)
        first = bytearray()
        for data in rest:
            first += data
            if len(first) > PART_BYTES:
                self._write_parts(path, url, chain([bytes(first)], rest))
                return
        with _errors_of(url):
            self._store.pipe_file(path, bytes(first))

    def remove(self, folder: str) -> None:
        """Remove a folder: its manifest first, so that no half of one counts."""
        for file in sorted(self.files(folder), key=lambda file: file != MANIFEST):
            with _errors_of(self._url(f"{folder}/{file}")):
                self._store.rm_file(self._path(f"{folder}/{file}"))

    def lock(self, owner: str) -> str:
        """Return "": an object store has no locks."""
        return ""

    def unlock(self) -> None:
        """Do nothing: an object store has no locks."""

    def _write_parts(self, path: str, url: str, parts: Iterator[bytes | memoryview]) -> None:
        with _errors_of(url):
            file = self._store.open(path, "wb", block_size=PART_BYTES)
        try:
            for data in parts:
                view = memoryview(data)
                for at in range(0, len(view), PART_BYTES):
                    with _errors_of(url):
                        file.write(view[at : at + PART_BYTES])
            with _errors_of(url):
                file.close()
        except BaseException:
            with suppress(Exception):
                file.discard()
            file.closed = True  # or it is closed, and so completed, when it is collected
            raise

    def _names(self, within: str, kind: str) -> list[str]:
        path = f"{self._root}{within}"
        try:
            with _errors_of(f"{self.name}{within}"):
                found = self._store.ls(path, detail=True)
        except FileNotFoundError as error:
            if _is_bucket_missing(error):
                raise
            return []
        parted = (one["name"].rpartition("/") for one in found if one["type"] == kind)
        return [name for parent, _, name in parted if name and parent == path]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _url(self, name: str) -> str:
        return f"{self.name}/{name}"


class _RangeReader(io.RawIOBase):
    """A file of a store, of which only what is asked for is read."""

    def __init__(self, store: Any, path: str, url: str) -> None:
        self._store, self._path, self._url = store, path, url
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}
        self._at = offset + (starts[whence] if whence in starts else self._size())
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[:PART_BYTES]
        data = self._range(len(view)) if len(view) else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        data = bytearray()
        while found := self._range(PART_BYTES):
            data += found
            self._at += len(found)
            if len(found) < PART_BYTES:
                break
        return bytes(data)

    def _range(self, count: int) -> bytes:
        try:
            with _errors_of(self._url):
                return bytes(self._store.cat_file(self._path, start=self._at, end=self._at + count))
        except OSError as error:
            if error.errno == errno.EINVAL and self._at >= self._size():  # S3 has no empty ranges
                return b""
            raise

    def _size(self) -> int:
        with _errors_of(self._url):
            return int(self._store.info(self._path)["size"])


def _opened(url: str) -> tuple[Any, str]:
    """Return a file system of fsspec, and the path in it without a slash at the end."""
    protocol = url.partition("://")[0]
    try:
        import fsspec

        if protocol in ("s3", "s3a"):
            from torchloom_core.checkpoints.bounded_s3 import BoundedS3

            store: Any = BoundedS3(skip_instance_cache=True)
        else:
            store = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False)
    except ModuleNotFoundError as error:
        raise CheckpointError(f"{url}: {_EXTRA}") from error
    except (ImportError, ValueError) as error:  # of a package, of a protocol
        raise CheckpointError(f"{url}: {_line(error)}") from None
    path = store._strip_protocol(url).rstrip("/")
    if not path.strip("/"):
        raise CheckpointError(f"{url}: need a bucket, as in {protocol}://bucket/run-7")
    return store, path


@contextmanager
def _errors_of(url: str) -> Iterator[None]:
    """Raise what a store's package raises as an OSError of one line that names the file."""
    try:
        yield
    except Exception as error:  # each package has exceptions of its own
        number = getattr(error, "errno", None)
        if not isinstance(number, int):
            kinds = (number for kind, number in _NUMBERS.items() if isinstance(error, kind))
            number = next(kinds, errno.EIO)
        raise OSError(number, _line(error), url) from error


def _line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _is_bucket_missing(error: OSError) -> bool:
    """Return whether the store itself says so: s3fs finds a missing folder by an empty list."""
    return error.__cause__ is not None and error.__cause__.__cause__ is not None
