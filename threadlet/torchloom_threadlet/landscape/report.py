"""What a look finds, gathered into pieces: one as soon as it says something, few a second."""

from collections.abc import Callable
from typing import NamedTuple

from torchloom_core.wire.landscape import Bend, Cells, Line, Piece, Plane
from torchloom_core.wire.standby_task import Loss
from torchloom_threadlet.landscape.grid import Cell
from torchloom_threadlet.standby_tasks.pace import Pace, finite


class Point(NamedTuple):
    """One point of the line: the share of the update, and the loss there."""

    share: float
    loss: float


Found = Bend | Point | Plane | Cell


class Report:
    """Tells what is found, points and cells several at a time.

    Parameters
    ----------
    tell : callable
        Takes a piece.
    """

    def __init__(self, tell: Callable[[Piece], object]) -> None:
        self._tell = tell
        self._line: list[tuple[float, Loss]] = []
        self._cells: list[tuple[int, int, Loss]] = []
        self._pace = Pace()

    def add(self, found: Found) -> None:
        """Take what was found, and tell it if that is due."""
        match found:
            case Point(share=share, loss=loss):
                self._line.append((share, finite(loss)))
            case Cell(row=row, column=column, loss=loss):
                self._cells.append((row, column, finite(loss)))
            case _:
                self.flush()
                self._tell(found)
        if self._pace.is_due(len(self._line) + len(self._cells)):
            self.flush()

    def flush(self) -> None:
        """Tell what was gathered."""
        self._pace.told()
        line, self._line = self._line, []
        cells, self._cells = self._cells, []
        if line:
            self._tell(Line(points=tuple(line)))
        if cells:
            self._tell(Cells(cells=tuple(cells)))
