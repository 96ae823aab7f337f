"""From where a checkpoint may be read, the fastest first, by measurement."""

import time
from collections.abc import Sequence

from torchloom_core.checkpoints.layout import is_tensors_file
from torchloom_core.checkpoints.storage import Storage

_PROBED = 4 << 20
_OFFSET_S = 1e-6


class Sources:
    """The places of a run's checkpoints.

    Parameters
    ----------
    path : Storage
        What all ranks reach, and one run saves in at a time.
    kinds : sequence of sequence of Storage
        All from which this rank reads: those of one kind are about equally fast.
    listed : sequence of Storage
        Those whose checkpoints this rank names to the others.
    """

    def __init__(
        self, path: Storage, kinds: Sequence[Sequence[Storage]], listed: Sequence[Storage]
    ) -> None:
        self.path = path
        self.listed = listed
        self._kinds = kinds

    def of(self, folder: str) -> list[Storage]:
        """Return those that have a part of this checkpoint, the fastest kind first."""
        if len(self._kinds) == 1:
            return list(self._kinds[0])
        timed = [(_seconds(kind, folder), n) for n, kind in enumerate(self._kinds)]
        return [source for _, n in sorted(timed) for source in self._kinds[n]]


def _seconds(kind: Sequence[Storage], folder: str) -> float:
    """Return the time to read a byte from the first source that has tensors; inf if none has."""
    for source in kind:
        try:
            names = sorted(filter(is_tensors_file, source.files(folder)))
            if not names:
                continue
            begun_s = time.monotonic()
            with source.open(f"{folder}/{names[0]}") as file:
                count = len(file.read(_PROBED))
            return (time.monotonic() - begun_s + _OFFSET_S) / max(count, 1)
        except OSError:
            continue
    return float("inf")
