"""Put a loss landscape together from its pieces, live or from a record."""

import math
from typing import Any

from torchloom_core.live.trajectory.standby_tasks import Pieces
from torchloom_core.wire.landscape import LANDSCAPE, MOST_SIDE, Cells, Curvature, Line, Piece, Plane
from torchloom_core.wire.operations import Survey
from torchloom_core.wire.standby_task import Loss


class Landscape(Pieces):
    """The newest loss landscape: ``line`` by share of the update, ``cells`` by row and column."""

    kind = LANDSCAPE
    verb = str(Survey.__struct_config__.tag)
    piece = Piece

    def reset(self) -> None:
        """Reset for another landscape."""
        self.bend: Curvature | None = None
        self._planes: dict[str, Plane] = {}
        self.plane: Plane | None = None
        self.line: dict[float, Loss] = {}
        self.cells: dict[tuple[int, int], Loss] = {}

    @property
    def parts(self) -> int:
        """Number of standbys that compute it, as far as known."""
        return max(super().parts, self.plane.parts if self.plane else 1)

    @property
    def strangers(self) -> tuple[str, ...]:
        """Workers whose cells are ignored, as they have other weights or another plane."""
        others = [command for command, plane in self._planes.items() if plane != self.plane]
        return tuple(self.commands[command] for command in others)

    def add(self, piece: Curvature | Line | Plane | Cells, command: str) -> None:
        """Add a piece; a line is cut to its maximum size."""
        match piece:
            case Curvature():
                self.bend = piece
            case Line(points=found):
                self.line.update(found[: MOST_SIDE - len(self.line)])
            case Plane():
                self._planes[command] = piece
                self.plane = self.plane or piece
            case Cells(cells=cells) if self._planes.get(command) == self.plane:
                side = self.plane.side if self.plane else MOST_SIDE
                self.cells.update({(r, c): loss for r, c, loss in cells if max(r, c) < side})

    def drawn_line(self) -> list[tuple[float, float]]:
        """Return share and loss of the line's finite points, sorted by share."""
        found = sorted(self.line.items())
        return [(share, loss) for share, loss in found if loss is not None]

    def drawn_cells(self) -> list[list[float]]:
        """Return ``(side, side)`` losses, for missing cells those of the coarser one, or NaN."""
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

    def contents(self) -> dict[str, Any]:
        """Return what was computed as plain dicts and lists."""
        return {
            "bend": self.bend,
            "line": sorted(self.line.items()),
            "plane": self.plane,
            "cells": [[*place, loss] for place, loss in sorted(self.cells.items())],
        }
