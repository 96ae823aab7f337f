"""Labels of each watched component, which do not change: model, size, components above it."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torchloom_core.wire.limits import MAX_FIELDS, MAX_SHORT_TEXT

Label = str | float


class Labels(NamedTuple):
    """The labels of all watched components.

    Attributes
    ----------
    of : tuple of dict of str to (str or float)
        One dict per component.
    numbers : tuple of str
        Names of numeric labels that differ between components.
    words : tuple of str
        Names of text labels that some components share and others do not.
    """

    of: tuple[dict[str, Label], ...] = ()
    numbers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


NO_LABELS = Labels()


def labels_from(rows: Sequence[Mapping[str, Any]]) -> Labels:
    """Return the labels in the columns of a table, one row per component.

    A column of numbers is numeric, and so is one of dates, which become seconds since 1970; any
    other column is text. Cells that are lists or tables are left out.
    """
    of: list[dict[str, Label]] = [{} for _ in rows]
    numbers, words = [], []
    for name in sorted({name for row in rows for name in row})[:MAX_FIELDS]:
        column = _column([row.get(name) for row in rows])
        for row, label in zip(of, column, strict=True):
            if label is not None:
                row[name] = label
        filled = [label for label in column if label is not None]
        different = set(filled)
        if len(different) < 2:
            continue
        if all(isinstance(label, float) for label in different):
            numbers.append(name)
        elif len(different) < len(filled):
            words.append(name)
    return Labels(tuple(of), tuple(numbers), tuple(words))


def _column(cells: Sequence[Any]) -> Sequence[Label | None]:
    plain = [cell if isinstance(cell, str | int | float) and cell != "" else None for cell in cells]
    for read in (_number, _date):
        column = [None if cell is None else read(cell) for cell in plain]
        if all(math.isfinite(label) for label in column if label is not None):
            return column
    return [None if cell is None else str(cell)[:MAX_SHORT_TEXT] for cell in plain]


def _number(cell: str | float) -> float:
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return math.nan


def _date(cell: str | float) -> float:
    try:
        moment = datetime.fromisoformat(str(cell))
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
