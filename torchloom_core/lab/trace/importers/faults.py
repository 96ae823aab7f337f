"""Collect the faults and warnings of a user's tables, to report them at once."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from torchloom_core.floor.errors import TraceError

SHOWN = 10
"""Faults that are reported; the others are only counted."""


class _First(NamedTuple):
    row: int
    more: int
    text_of: Callable[[int], str]


class Faults:
    """Faults and warnings by file, in the order in which the files were read."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[tuple[int, str]]] = {}
        self._firsts: dict[tuple[Path, str], _First] = {}
        self._count = 0
        self._warnings: dict[tuple[Path, str], tuple[int, str]] = {}

    @property
    def warnings(self) -> list[str]:
        """The warnings, one line each."""
        return [
            f"{path.name}: {text}" + (f": {count}, the first {first}" if first else "")
            for (path, text), (count, first) in self._warnings.items()
        ]

    def warn(self, path: Path, text: str, count: int = 1, first: str = "") -> None:
        """Add a warning of ``count`` cells, of which ``first`` is the first."""
        before, earliest = self._warnings.get((path, text), (0, first))
        self._warnings[path, text] = before + count, earliest

    def add(self, path: Path, row: int, text: str) -> None:
        """Add the fault of one row: "need <rule>, was <value>"."""
        self.add_all(path, [row], lambda _: text)

    def add_all(self, path: Path, rows: Iterable[int], text_of: Callable[[int], str]) -> None:
        """Add the faults of many rows; ``text_of`` is called for those that may be reported."""
        first = sorted(rows)
        self._count += len(first)
        self._lines.setdefault(path, []).extend((row, text_of(row)) for row in first[:SHOWN])

    def add_first(
        self, path: Path, what: str, rows: Sequence[int], text_of: Callable[[int], str]
    ) -> None:
        """Add one fault for all rows under the key ``what``, at the first of them."""
        known = self._firsts.get((path, what))
        if known is None:
            self._count += 1
            known = _First(rows[0], -1, text_of)
        self._firsts[path, what] = known._replace(more=known.more + len(rows))

    def refuse(self) -> None:
        """Raise a TraceError if there are faults: one line each, and their number."""
        if not self._count:
            return
        for (path, _), first in self._firsts.items():
            self._lines.setdefault(path, []).append((first.row, first.text_of(first.more)))
        lines = (
            f"{path}:{row}: {text}"
            for path, found in self._lines.items()
            for row, text in sorted(found)
        )
        shown = list(islice(lines, SHOWN))
        if self._count > 1:
            shown.append(f"{self._count} errors in all")
        raise TraceError("\n".join(shown))
