"""The furthest step of each worker, to detect that a run started over."""

import numpy as np

from torchloom_core.interface.arrays import Ints


class FurthestSteps:
    """The highest step of each row, over all of its incarnations.

    Attributes
    ----------
    most : int
        The highest median step so far, -1 before any: a single wrong report does not move it.
    """

    def __init__(self) -> None:
        self._of_row: Ints = np.full(0, -1, dtype=np.int64)
        self.most = -1

    def went_back(self, rows: Ints, steps: Ints) -> bool:
        """Take the current steps of rows; return whether all of them are earlier than before.

        A worker that rejoins alone is behind the others for a while; if all are behind, the run
        started over, and the steps so far are dropped.
        """
        if not len(rows):
            return False
        more = int(rows.max()) + 1 - len(self._of_row)
        if more > 0:
            self._of_row = np.pad(self._of_row, (0, more), constant_values=-1)
        before = self._of_row[rows]
        back = bool(np.all(steps < np.where(before < 0, self.most, before)))
        if back:
            self._of_row[:] = self.most = -1
        self._of_row[rows] = np.maximum(self._of_row[rows], steps)
        self.most = max(self.most, int(np.median(steps)))
        return back
