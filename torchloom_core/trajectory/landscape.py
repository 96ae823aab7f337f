"""A landscape put together from its pieces, as they come or as they stand in a record."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.trajectory.layout import Line as RecordLine
from torchloom_core.trajectory.reader import lives
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.landscape import (
    LANDSCAPE,
    MOST_SIDE,
    Bend,
    Cells,
    End,
    Line,
    Loss,
    Piece,
    Plane,
)
from torchloom_core.wire.messages import Note


class Landscape:
    """What has come so far of the newest look at the loss.

    Attributes
    ----------
    version : int
        Another number whenever there is more.
    command, worker : str
        Whose it is, empty before the first piece.
    points, of : int
        How often the loss was evaluated, and about how often it will be.
    line : dict of float to Loss
        By the share of the update, in the order in which they came.
    cells : dict of (int, int) to Loss
        By row and column, in that order too.
    """

    def __init__(self) -> None:
        self.version = 0
        self._begin("", "")

    def _begin(self, command: str, worker: str) -> None:
        self.command, self.worker = command, worker
        self.points = self.of = 0
        self.bend: Bend | None = None
        self.plane: Plane | None = None
        self.end: End | None = None
        self.line: dict[float, Loss] = {}
        self.cells: dict[tuple[int, int], Loss] = {}

    def take(self, note: Note) -> None:
        """Take a note that brings a piece: the first of another look begins anew.

        What brings none is passed over.
        """
        fields = note.fields
        points, of, command = (fields.get(name) for name in ("points", "of", "command"))
        if not (isinstance(points, int) and isinstance(of, int) and isinstance(command, str)):
            return
        try:
            piece: Piece = msgspec.json.decode(str(fields.get("piece")), type=Piece)
        except UNREADABLE:
            return
        if (command, note.worker) != (self.command, self.worker):
            self._begin(command, note.worker)
        self.points, self.of = points, of
        self.version += 1
        match piece:
            case Bend():
                self.bend = piece
            case Line(points=found):
                self.line.update(found[: MOST_SIDE - len(self.line)])
            case Plane():
                self.plane = piece
            case Cells(cells=cells):
                self.cells.update({(row, column): loss for row, column, loss in cells})
            case End():
                self.end = piece

    def drawn_line(self) -> list[tuple[float, float]]:
        """Return share and loss of the line's points that are numbers, by share."""
        found = sorted(self.line.items())
        return [(share, loss) for share, loss in found if loss is not None]

    def drawn_cells(self) -> list[list[float]]:
        """Return ``(side, side)`` losses, NaN where there is none.

        A cell that was not looked at has the loss of the coarser one that it is a part of.
        """
        side = self.plane.side if self.plane else 0
        return [[self._coarse(row, column, side) for column in range(side)] for row in range(side)]

    def _coarse(self, row: int, column: int, side: int) -> float:
        stride = 1
        while stride < 2 * side:
            place = row - row % stride, column - column % stride
            if place in self.cells:
                loss = self.cells[place]
                return math.nan if loss is None else loss
            stride *= 2
        return math.nan

    def for_machines(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""
        return {
            "command": self.command,
            "worker": self.worker,
            "points": self.points,
            "bend": self.bend,
            "line": sorted(self.line.items()),
            "plane": self.plane,
            "cells": [[*place, loss] for place, loss in sorted(self.cells.items())],
            "end": self.end,
        }


def newest_recorded(root: Path) -> Landscape | None:
    """Return the landscape of a trajectory that was begun last, None where there is none.

    Raises
    ------
    StateError
        If it cannot be read.
    """
    found = Landscape()
    for life in lives(root):
        for note in _notes(life.lines()):
            found.take(note)
    return found if found.version else None


def _notes(lines: Iterable[RecordLine]) -> Iterable[Note]:
    for line in lines:
        if line.kind == "note":
            try:
                note = msgspec.json.decode(line.body, type=Note)
            except UNREADABLE:
                continue
            if note.kind == LANDSCAPE:
                yield note
