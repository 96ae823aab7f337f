"""What a sync of the Manager has cost, and the steps since the one before it."""

import time

from torchloom_threadlet.compression import CompressedProcessGroup


class RoundFigures:
    """Adds up what happens between two decisions of the Manager: a step of DDP, or a round.

    Only the step in which it decides tells anything. So the newest figures of the allreduce are
    those of the last sync, however many steps reduce nothing after it.

    Parameters
    ----------
    pg : CompressedProcessGroup
        The Manager's.
    """

    def __init__(self, pg: CompressedProcessGroup) -> None:
        self._pg = pg
        self._decided = False
        self._has_rounds = False
        self._since = time.perf_counter()
        self._steps, self._whole_s, self._wait_s = 0, 0.0, 0.0

    def begin_step(self) -> None:
        """Count the time from now on: a pause, say, is over."""
        self._since = time.perf_counter()

    def decide(self) -> None:
        """Note that the Manager has decided on what was reduced."""
        self._decided = True

    def end_step(self, wait_s: float) -> dict[str, float]:
        """Return what there is to tell at a step in which others were waited for so long."""
        self._steps += 1
        self._whole_s += time.perf_counter() - self._since
        self._wait_s += wait_s
        if not self._decided:
            return {}
        told = self._pg.take_figures().metrics()
        self._has_rounds |= self._steps > 1
        if self._has_rounds:
            told["round_steps"] = self._steps
            told["round_s"], told["round_wait_s"] = self._whole_s, self._wait_s
        self._decided = False
        self._steps, self._whole_s, self._wait_s = 0, 0.0, 0.0
        return told
