"""Rows that are gathered once for all who learn from the same."""

from collections.abc import Hashable, Iterable

from torchloom_core.learning.row_learner import RowLearner
from torchloom_core.learning.rows import RowGathering
from torchloom_core.plugin.api import Example
from torchloom_core.plugin.needs import PredictorNeed


class SharedRows:
    """Sees the examples that somebody else is shown, for several learners at once.

    Attributes
    ----------
    needs : tuple of Need or NeedFaults
        What has to be in the views.
    """

    def __init__(self, learners: Iterable[RowLearner]) -> None:
        first: dict[Hashable, RowLearner] = {}
        for learner in learners:
            first.setdefault(learner.sampled, learner)
        self._gathered: dict[Hashable, RowGathering] = {
            sampled: learner.gathering() for sampled, learner in first.items()
        }
        self.needs: tuple[PredictorNeed, ...] = tuple(
            need for learner in first.values() for need in learner.needs
        )

    def add(self, example: Example) -> None:
        """See one example."""
        for gathered in self._gathered.values():
            gathered.add(example)

    def teach(self, learner: RowLearner) -> None:
        """Let one of the learners learn from its rows, or raise a PluginError."""
        learner.learn(self._gathered[learner.sampled].rows(learner.name))
