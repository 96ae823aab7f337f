"""Gathers a survey's results into pieces: few a second, each as soon as it is useful."""

from collections.abc import Callable
from typing import NamedTuple

from torchloom_core.wire.landscape import Cells, Curvature, Line, Piece, Plane
from torchloom_core.wire.standby_task import Loss
from torchloom_threadlet.landscape.grid import Cell
from torchloom_threadlet.standby_tasks.budget import Pace, finite


class Point(NamedTuple):
    """One point of the line: the share of the update, and the loss there."""

    share: float
    loss: float


Found = Curvature | Point | Plane | Cell


class Report:
    """Sends results, points and cells several at a time."""

    def __init__(self, send: Callable[[Piece], object]) -> None:
        self._send = send
        self._line: list[tuple[float, Loss]] = []
        self._cells: list[tuple[int, int, Loss]] = []
        self._pace = Pace()

    def add(self, found: Found) -> None:
        """Take a result, and send it if that is due."""
        match found:
            case Point(share=share, loss=loss):
                self._line.append((share, finite(loss)))
            case Cell(row=row, column=column, loss=loss):
                self._cells.append((row, column, finite(loss)))
            case _:
                self.flush()
                self._send(found)
        if self._pace.is_due(len(self._line) + len(self._cells)):
            self.flush()

    def flush(self) -> None:
        """Send the gathered results."""
        self._pace.reset()
        line, self._line = self._line, []
        cells, self._cells = self._cells, []
        if line:
            self._send(Line(points=tuple(line)))
        if cells:
            self._send(Cells(cells=tuple(cells)))
