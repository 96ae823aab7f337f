"""The size of the training data, from which a predictor estimates its memory."""

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
        Number of examples.
    values : int
        Telemetry values, of all metrics.
    failing : int
        Positive moments of all components, at most.
    every_s : float
        Seconds between examples.

    Examples
    --------
    >>> from torchloom_core.lab.learning import FitSize
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
        """Return the rows of a sample with at most ``max_healthy`` healthy ones."""
        return min(max_healthy, self.components * self.moments) + self.failing

    def sample_bytes(self, max_healthy: int, columns: int) -> int:
        """Return the most memory to gather such a sample and to learn from it, bytes.

        Thinning copies a sample; calibration needs a second one; scaling copies the rows.
        """
        rows, at_once = self.rows(max_healthy), self.components * columns
        return NUMBER_BYTES * (6 * rows * columns + 2 * at_once)
