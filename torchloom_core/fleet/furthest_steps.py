"""How far the workers of a run have come, by which it is seen that a run began anew."""

import numpy as np

from torchloom_core.plugin.arrays import Ints


class FurthestSteps:
    """The highest step of each row, over all of its lives.

    Attributes
    ----------
    most : int
        The highest that half of those who are heard have come to at once, -1 before any: not what
        a single one claims, as it outlives its worker.
    """

    def __init__(self) -> None:
        self._of_row: Ints = np.full(0, -1, dtype=np.int64)
        self.most = -1

    def went_back(self, rows: Ints, steps: Ints) -> bool:
        """Take the steps that rows are at; say whether each is at an earlier one than it was.

        One that comes back alone is behind the others for a while; a run that began anew has
        nobody who is as far as before. What was before is forgotten then.
        """
        if not len(rows):
            return False
        more = int(rows.max()) + 1 - len(self._of_row)
        if more > 0:
            self._of_row = np.pad(self._of_row, (0, more), constant_values=-1)
        known = self._of_row[rows]
        back = bool(np.all(steps < np.where(known < 0, self.most, known)))
        if back:
            self._of_row[:] = self.most = -1
        self._of_row[rows] = np.maximum(self._of_row[rows], steps)
        self.most = max(self.most, int(np.median(steps)))
        return back
