"""Deflated bytes of tensors, read with no more memory than the tensor needs."""

import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.errors import CheckpointError

_AT_ONCE = 1 << 20  # a multiple of each block; more take more memory


def damaged(why: str) -> CheckpointError:
    """Return the error of an encoding that cannot be decoded."""
    return CheckpointError(f"a small tensor is damaged: {why}")


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield where each part of ``count`` numbers begins and ends."""
    for begin in range(0, count, _AT_ONCE):
        yield begin, min(begin + _AT_ONCE, count)


def deflated_planes(data: memoryview, width: int) -> bytes:
    """Return numbers of ``width`` bytes deflated: first the first byte of each, and so on.

    Bytes at the same place are more alike than those of one number.
    """
    deflate = zlib.compressobj(1)
    planes = _planes(data, width)
    parts = [
        deflate.compress(planes[begin:end, plane].tobytes())
        for plane in range(width)
        for begin, end in chunks(len(planes))
    ]
    return b"".join([*parts, deflate.flush()])


def read_planes(body: memoryview, width: int, into: memoryview) -> None:
    """Read what :func:`deflated_planes` returned into a view of its length."""
    if len(into) % width:
        raise damaged("its length is another")
    inflating = Inflating(body)
    planes = _planes(into, width)
    for plane in range(width):
        for begin, end in chunks(len(planes)):
            planes[begin:end, plane] = np.frombuffer(inflating.take(end - begin), np.uint8)
    inflating.end()


def _planes(data: memoryview, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8).reshape(-1, width)


class Inflating:
    """Reads deflated bytes piece by piece, so that none takes more memory than it was asked for."""

    def __init__(self, body: memoryview) -> None:
        self._inflate = zlib.decompressobj()
        self._left, self._fed = body, b""

    def take(self, size: int) -> bytes:
        """Return the next bytes, so many; CheckpointError if there are fewer."""
        found = b""
        while len(found) < size:
            more = self._more(size - len(found))
            if not more and not self._fed and not self._left:
                raise damaged("it is cut off")
            found += more
        return found

    def end(self) -> None:
        """Check that nothing is left but the checksum of all."""
        while self._fed or self._left:
            if self._more(1) or self._inflate.unused_data:
                break
        if self._more(1) or not self._inflate.eof or self._inflate.unused_data:
            raise damaged("its end is not where it should be")

    def _more(self, most: int) -> bytes:
        if not self._fed:
            self._fed, self._left = bytes(self._left[:_AT_ONCE]), self._left[_AT_ONCE:]
        try:
            data = self._inflate.decompress(self._fed, most)
        except zlib.error as error:
            raise damaged(str(error)) from None
        self._fed = self._inflate.unconsumed_tail
        return data
