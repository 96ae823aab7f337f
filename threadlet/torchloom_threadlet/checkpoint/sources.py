"""From where a checkpoint may be read, the fastest first, by measurement."""

import time
from collections.abc import Iterable, Sequence

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
    remote : Storage, optional
        The one that may take a minute to answer.
    """

    def __init__(
        self,
        path: Storage,
        kinds: Sequence[Sequence[Storage]],
        listed: Sequence[Storage],
        remote: Storage | None = None,
    ) -> None:
        self.path = path
        self.remote = remote
        self.listed = listed
        self._kinds = kinds
        self._left_out: set[str] = set()

    def leave_out(self, names: Iterable[str]) -> None:
        """Read from all but those of these names, which did not answer, until the next call."""
        self._left_out = set(names)

    def of(self, folder: str) -> list[Storage]:
        """Return those that have a part of this checkpoint, the fastest kind first."""
        kinds = [
            [source for source in kind if source.name not in self._left_out] for kind in self._kinds
        ]
        if len(kinds) == 1:
            return kinds[0]
        timed = [(self._seconds(kind, folder), n) for n, kind in enumerate(kinds)]
        return [
            source
            for _, n in sorted(timed)
            for source in kinds[n]
            if source.name not in self._left_out
        ]

    def _seconds(self, kind: Sequence[Storage], folder: str) -> float:
        """Return the time to read a byte of the first source with tensors; inf if none has.

        A source that cannot be read is left out from now on: that may have taken a minute.
        """
        for source in kind:
            try:
                seconds = _seconds_a_byte(source, folder)
            except OSError:
                self._left_out.add(source.name)
                continue
            if seconds is not None:
                return seconds
        return float("inf")


def _seconds_a_byte(source: Storage, folder: str) -> float | None:
    names = sorted(filter(is_tensors_file, source.files(folder)))
    if not names:
        return None
    begun_s = time.monotonic()
    with source.open(f"{folder}/{names[0]}") as file:
        count = len(file.read(_PROBED))
    return (time.monotonic() - begun_s + _OFFSET_S) / max(count, 1)
