"""Predictors that learn from rows which are kept of the examples as they pass.

What is kept of one pass teaches all that want the same rows, and whoever else looks at the same
moments needs no pass of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar, Protocol

from torchloom_core.learning.rows import Rows
from torchloom_core.plugin.api import Example
from torchloom_core.plugin.needs import PredictorNeed


class Gathering(Protocol):
    """Keeps rows of the examples that pass.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import Gathering, RowSample
    >>> class Heat:
    ...     def __init__(self):
    ...         self._sample = RowSample(max_healthy=1000, seed=0)
    ...
    ...     def add(self, example):
    ...         heat = example.view.latest("heat")[:, None]  # (workers, 1)
    ...         self._sample.add(example.view.now_ns, heat, example.outcome)
    ...
    ...     def rows(self, predictor):
    ...         return self._sample.rows(predictor)
    >>> from torchloom_core.plugin import Example
    >>> from torchloom_core.testing import view_of
    >>> gathering: Gathering = Heat()
    >>> gathering.add(Example(view=view_of({"heat": [1.0, 9.0]}), outcome=np.array([0.0, 1.0])))
    >>> gathering.rows("mine").features[:, 0].tolist()
    [1.0, 9.0]
    """

    def add(self, example: Example) -> None:
        """Take one example."""

    def rows(self, predictor: str) -> Rows:
        """Return what was kept, or raise a PluginError as :meth:`RowSample.rows`."""


class GatheredLearner(ABC):
    """A learner that says what to keep of each example, and learns from what was kept.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import Features, GatheredLearner
    >>> from torchloom_core.learning.rows import RowGathering
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
        """Tell which rows it learns from: learners of which this is equal learn from the same."""

    @abstractmethod
    def gathering(self) -> Gathering:
        """Return what gathers its rows."""

    @abstractmethod
    def learn(self, rows: Rows) -> None:
        """Learn from rows; what was learned before is forgotten."""

    def learn_again(self, rows: Rows) -> None:
        """Learn from more rows, once calibrated; what was chosen by trial before may stay."""
        self.learn(rows)

    def fit(self, examples: Iterable[Example]) -> None:
        """Learn from the rows of the examples; of many healthy ones a sample is kept."""
        gathered = self.gathering()
        for example in examples:
            gathered.add(example)
        self.learn(gathered.rows(self.name))
