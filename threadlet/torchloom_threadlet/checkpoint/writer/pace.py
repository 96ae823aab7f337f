"""Limits the rate at which a writer sends to other nodes and stores."""

import time
from collections.abc import Iterable, Iterator

_SLICE = 1 << 20
_LONGEST_PAUSE_S = 0.2


class Pace:
    """A limit that several senders share, each for itself; ``bytes_per_s`` 0: none.

    It may be changed at any time, also in the middle of a file.
    """

    def __init__(self) -> None:
        self.bytes_per_s = 0.0

    def limit(self, parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
        """Yield the parts in slices, each when it may be sent."""
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), _SLICE):
                data = view[at : at + _SLICE]
                yield data
                self._wait(len(data))

    def _wait(self, count: int) -> None:
        begun_s = time.monotonic()
        while (rate := self.bytes_per_s) > 0:
            left_s = begun_s + count / rate - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _LONGEST_PAUSE_S))
