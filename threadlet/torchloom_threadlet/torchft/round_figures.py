"""The cost of a Manager's sync, and the steps since the sync before."""

import time

from torchloom_threadlet.compression import CompressedProcessGroup


class RoundFigures:
    """Sums up costs between two decisions of the Manager: over a step of DDP, or a round.

    Only the step of the decision reports them, so the newest figures of the allreduce are those of
    the last sync, however many steps without a reduction follow.

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
        """Start the clock: a pause, for instance, is over."""
        self._since = time.perf_counter()

    def decide(self) -> None:
        """Record that the Manager has decided on a reduction."""
        self._decided = True

    def end_step(self, wait_s: float) -> dict[str, float]:
        """Return the step's metrics, given its wait for others."""
        self._steps += 1
        self._whole_s += time.perf_counter() - self._since
        self._wait_s += wait_s
        if not self._decided:
            return {}
        metrics = self._pg.take_figures().metrics()
        self._has_rounds |= self._steps > 1
        if self._has_rounds:
            metrics["round_steps"] = self._steps
            metrics["round_s"], metrics["round_wait_s"] = self._whole_s, self._wait_s
        self._decided = False
        self._steps, self._whole_s, self._wait_s = 0, 0.0, 0.0
        return metrics
