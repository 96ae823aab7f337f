"""How large what a predictor is to learn from is, so that it can say how much memory it takes."""

from dataclasses import dataclass

NUMBER_BYTES = 8
"""Of a float64."""


@dataclass(frozen=True, kw_only=True)
class FitSize:
    """Counts of a trace's training time, known before anything is read.

    Attributes
    ----------
    components : int
        Workers at a moment, at most.
    moments : int
        Examples that pass.
    values : int
        Telemetry values, of all metrics.
    failing : int
        Moments of a component that a failure follows, at most.
    every_s : float
        From one example to the next, seconds.

    Examples
    --------
    >>> from torchloom_core.learning import FitSize
    >>> size = FitSize(components=1000, moments=40, values=10**5, failing=30, every_s=3600.0)
    >>> size.rows(max_healthy=20_000)
    20030
    """

    components: int
    moments: int
    values: int
    failing: int
    every_s: float

    def rows(self, max_healthy: int) -> int:
        """Return how many rows a sample keeps that takes so many of components that do not fail."""
        return min(max_healthy, self.components * self.moments) + self.failing

    def sample_bytes(self, max_healthy: int, columns: int) -> int:
        """Return what it takes at most to gather such a sample and to learn from it, bytes.

        While a sample is gathered it is copied each time that it is thinned; a fit gathers one
        more to calibrate on; who learns copies the rows to scale them.
        """
        rows, at_once = self.rows(max_healthy), self.components * columns
        return NUMBER_BYTES * (6 * rows * columns + 2 * at_once)
