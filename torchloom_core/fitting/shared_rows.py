"""Rows that are gathered once for all who learn from the same."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

from msgspec.structs import replace

from torchloom_core.errors import PluginError
from torchloom_core.fitting.stages import as_plugin_error
from torchloom_core.learning.gathered_learner import GatheredLearner, Gathering
from torchloom_core.learning.rows import Rows
from torchloom_core.plugin.api import Example
from torchloom_core.plugin.foreign import is_ours
from torchloom_core.plugin.needs import labels_read


class SharedRows:
    """Sees the examples that pass, for several learners at once.

    What breaks as it gathers is shown no more, and costs nobody but those who learn from it.
    Somebody else's learner is given rows of its own, which it may spoil. Rows are let go of once
    all have learned from them.
    """

    def __init__(self, learners: Iterable[GatheredLearner]) -> None:
        self._first: dict[Hashable, GatheredLearner] = {}
        self._gathered: dict[Hashable, Gathering] = {}
        self._kept: dict[Hashable, Rows] = {}
        self._broke: dict[Hashable, PluginError] = {}
        self._to_teach: Counter[Hashable] = Counter()
        for learner in learners:
            with suppress(PluginError), as_plugin_error(learner):  # raised again as it is taught
                self._first.setdefault(sampled_by(learner), learner)
                self._to_teach[sampled_by(learner)] += 1
        for sampled, learner in self._first.items():
            with self._breaking(sampled):
                self._gathered[sampled] = learner.gathering()

    def add(self, example: Example) -> None:
        """See one example."""
        self._kept.clear()
        for sampled, gathered in self._gathered.items():
            if sampled not in self._broke:
                with self._breaking(sampled):
                    gathered.add(example if is_ours(gathered) else self._own(sampled, example))

    def place(self, learner: GatheredLearner) -> int:
        """Return where its rows come; taught in this order, they are let go of soonest."""
        with suppress(PluginError), as_plugin_error(learner):
            return [*self._first].index(sampled_by(learner))
        return len(self._first)

    def teach(self, learner: GatheredLearner, *, again: bool) -> None:
        """Let one of the learners learn from its rows, once, or raise a PluginError.

        Parameters
        ----------
        again : bool
            Whether it has learned from fewer of them before.
        """
        sampled = sampled_by(learner)
        if broke := self._broke.get(sampled):
            raise broke
        rows = self._kept.get(sampled)
        if rows is None:
            rows = self._kept[sampled] = self._gathered[sampled].rows(learner.name)
        self._to_teach[sampled] -= 1
        if not self._to_teach[sampled]:
            del self._kept[sampled], self._gathered[sampled]
        if not is_ours(learner):
            rows = deepcopy(rows)
        if again:
            learner.learn_again(rows)
        else:
            learner.learn(rows)

    def _own(self, sampled: Hashable, example: Example) -> Example:
        """Return what somebody else's may spoil, with no labels but those it asked for."""
        labels = labels_read(self._first[sampled].needs)
        view = example.view.twin().with_labels(labels)
        return replace(example, view=view, outcome=example.outcome.copy())

    @contextmanager
    def _breaking(self, sampled: Hashable) -> Iterator[None]:
        """Keep what breaks, for those who would learn from it."""
        try:
            with as_plugin_error(self._first[sampled]):
                yield
        except PluginError as error:
            self._broke[sampled] = error


def sampled_by(learner: GatheredLearner) -> Hashable:
    """Tell which rows it learns from: others where it gathers in another way, whatever it says."""
    return type(learner).gathering, learner.sampled
