"""Gather what is wrong or odd about the rows of somebody's own tables, to tell it in one go."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from torchloom_core.errors import TraceError

TOLD = 10
"""Faults that are told; of the others only how many there are."""


class _First(NamedTuple):
    row: int
    more: int
    text_of: Callable[[int], str]


class Faults:
    """Faults of rows, file by file in the order in which they were read."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[tuple[int, str]]] = {}
        self._firsts: dict[tuple[Path, str], _First] = {}
        self._count = 0
        self._remarks: dict[tuple[Path, str], tuple[int, str]] = {}

    @property
    def remarks(self) -> list[str]:
        """What was taken otherwise than it is written, a line each."""
        return [
            f"{path.name}: {text}" + (f": {count}, the first {first}" if first else "")
            for (path, text), (count, first) in self._remarks.items()
        ]

    def remark(self, path: Path, text: str, count: int = 1, first: str = "") -> None:
        """Take what is no fault; ``count`` cells more of it, of which ``first`` is the first."""
        before, known = self._remarks.get((path, text), (0, first))
        self._remarks[path, text] = before + count, known

    def add(self, path: Path, row: int, text: str) -> None:
        """Take what is wrong with one row: "need <rule>, was <value>"."""
        self.add_all(path, [row], lambda _: text)

    def add_all(self, path: Path, rows: Iterable[int], text_of: Callable[[int], str]) -> None:
        """Take one fault of many rows; ``text_of`` is asked for those that may be told."""
        first = sorted(rows)
        self._count += len(first)
        self._lines.setdefault(path, []).extend((row, text_of(row)) for row in first[:TOLD])

    def add_first(
        self, path: Path, what: str, rows: Sequence[int], text_of: Callable[[int], str]
    ) -> None:
        """Take one fault that many rows have, of the first of them.

        Parameters
        ----------
        what : str
            Under which those of other parts of the file are the same fault.
        text_of : callable
            What is wrong, given how many rows more have it.
        """
        known = self._firsts.get((path, what))
        if known is None:
            self._count += 1
            known = _First(rows[0], -1, text_of)
        self._firsts[path, what] = known._replace(more=known.more + len(rows))

    def refuse(self) -> None:
        """Raise a TraceError if there are faults, a line each, the last how many there are."""
        if not self._count:
            return
        for (path, _), first in self._firsts.items():
            self._lines.setdefault(path, []).append((first.row, first.text_of(first.more)))
        lines = (
            f"{path}:{row}: {text}"
            for path, found in self._lines.items()
            for row, text in sorted(found)
        )
        told = list(islice(lines, TOLD))
        if self._count > 1:
            told.append(f"{self._count} faults in all")
        raise TraceError("\n".join(told))
