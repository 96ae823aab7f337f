"""Predictors that learn from rows gathered in one pass over the examples.

Learners with the same rows share one gathering, and different ones share the pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torchloom_core.interface.api import Example
from torchloom_core.interface.needs import PredictorNeed
from torchloom_core.lab.learning.rows import Rows

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
        """Return the most memory to gather two samples, thin and scale them, and learn, bytes."""
        rows, at_once = self.rows(max_healthy), self.components * columns
        return NUMBER_BYTES * (6 * rows * columns + 2 * at_once)


class Gathering(Protocol):
    """Gathers rows from the examples.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Gathering, RowSample
    >>> class Temperatures:
    ...     def __init__(self):
    ...         self._sample = RowSample(max_healthy=1000, seed=0)
    ...
    ...     def add(self, example):
    ...         celsius = example.view.latest("celsius")[:, None]  # (workers, 1)
    ...         self._sample.add(example.view.now_ns, celsius, example.outcome)
    ...
    ...     def rows(self, predictor):
    ...         return self._sample.rows(predictor)
    >>> from torchloom_core.plugin import Example
    >>> from torchloom_core.testing import view_of
    >>> gathering: Gathering = Temperatures()
    >>> view = view_of({"celsius": [50.0, 90.0]})
    >>> gathering.add(Example(view=view, outcome=np.array([0.0, 1.0])))
    >>> gathering.rows("mine").features[:, 0].tolist()
    [50.0, 90.0]
    """

    def add(self, example: Example) -> None:
        """Add one example."""

    def rows(self, predictor: str) -> Rows:
        """Return the rows, or raise a PluginError as :meth:`RowSample.rows`."""


class GatheredLearner(ABC):
    """A learner that gathers rows from the examples, and learns from the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import Features, GatheredLearner
    >>> from torchloom_core.lab.learning.rows import RowGathering
    >>> from torchloom_core.plugin import Example
    >>> from torchloom_core.testing import view_of
    >>> class BaseRate(GatheredLearner):
    ...     name = "base_rate"
    ...     sampled = "base_rate"
    ...
    ...     def gathering(self):
    ...         return RowGathering(Features(), max_healthy=1000, seed=0)
    ...
    ...     def learn(self, rows):
    ...         failed = rows.failed.sum()
    ...         self.rate = float(failed / (failed + (~rows.failed).sum() / rows.share))
    >>> learner = BaseRate()
    >>> learner.fit([Example(view=view_of(workers=4), outcome=np.array([0.0, 0.0, 1.0, 0.0]))])
    >>> learner.rate
    0.25
    """

    name: ClassVar[str]
    needs: Sequence[PredictorNeed]

    @property
    @abstractmethod
    def sampled(self) -> Hashable:
        """A key of its rows: learners with equal keys learn from the same rows."""

    @abstractmethod
    def gathering(self) -> Gathering:
        """Return a new gathering of its rows."""

    @abstractmethod
    def learn(self, rows: Rows) -> None:
        """Learn from rows, from scratch."""

    def learn_again(self, rows: Rows) -> None:
        """Learn from more rows after the calibration; tuned settings may stay."""
        self.learn(rows)

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn from the rows of the examples."""
        gathered = self.gathering()
        for example in examples:
            gathered.add(example)
        self.learn(gathered.rows(self.name))
