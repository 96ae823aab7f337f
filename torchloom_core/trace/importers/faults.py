"""Gather what is wrong with the rows of somebody's own tables, to tell it in one go."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from torchloom_core.errors import TraceError

TOLD = 10
"""Faults that are told; of the others only how many there are."""


class Faults:
    """Faults of rows, file by file in the order in which they were read."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[tuple[int, str]]] = {}
        self._count = 0

    def add(self, path: Path, row: int, text: str) -> None:
        """Take what is wrong with one row: "need <rule>, was <value>"."""
        self.add_all(path, [row], lambda _: text)

    def add_all(self, path: Path, rows: Iterable[int], text_of: Callable[[int], str]) -> None:
        """Take one fault of many rows; ``text_of`` is asked for those that may be told."""
        first = sorted(rows)
        self._count += len(first)
        self._lines.setdefault(path, []).extend((row, text_of(row)) for row in first[:TOLD])

    def refuse(self) -> None:
        """Raise a TraceError if there are faults, a line each, the last how many there are."""
        if not self._count:
            return
        lines = (
            f"{path}:{row}: {text}"
            for path, found in self._lines.items()
            for row, text in sorted(found)
        )
        told = list(islice(lines, TOLD))
        if self._count > 1:
            told.append(f"{self._count} faults in all")
        raise TraceError("\n".join(told))
