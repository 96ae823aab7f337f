"""Rows that are gathered once for all who learn from the same."""

from collections.abc import Hashable, Iterable

from torchloom_core.learning.gathered_learner import GatheredLearner, Gathering
from torchloom_core.plugin.api import Example


class SharedRows:
    """Sees the examples that pass, for several learners at once."""

    def __init__(self, learners: Iterable[GatheredLearner]) -> None:
        first: dict[Hashable, GatheredLearner] = {}
        for learner in learners:
            first.setdefault(learner.sampled, learner)
        self._gathered: dict[Hashable, Gathering] = {
            sampled: learner.gathering() for sampled, learner in first.items()
        }

    def add(self, example: Example) -> None:
        """See one example."""
        for gathered in self._gathered.values():
            gathered.add(example)

    def teach(self, learner: GatheredLearner, *, again: bool) -> None:
        """Let one of the learners learn from its rows, or raise a PluginError.

        Parameters
        ----------
        again : bool
            Whether it has learned from fewer of them before.
        """
        rows = self._gathered[learner.sampled].rows(learner.name)
        if again:
            learner.learn_again(rows)
        else:
            learner.learn(rows)
