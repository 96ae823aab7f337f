"""Gather training rows once for all learners that use the same."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

from msgspec.structs import replace

from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.api import Example
from torchloom_core.interface.foreign import is_ours
from torchloom_core.interface.needs import labels_read
from torchloom_core.lab.fitting.stages import as_plugin_error
from torchloom_core.lab.learning.gathered_learner import GatheredLearner, Gathering
from torchloom_core.lab.learning.rows import Rows


class SharedRows:
    """Gathers rows from examples, for several learners at once.

    An error while gathering affects only the learners that use those rows. A third-party learner
    gets a copy of the rows, as it may modify them. Rows are freed once all learners have used them.
    """

    def __init__(self, learners: Iterable[GatheredLearner]) -> None:
        self._first: dict[Hashable, GatheredLearner] = {}
        self._gathered: dict[Hashable, Gathering] = {}
        self._rows: dict[Hashable, Rows] = {}
        self._errors: dict[Hashable, PluginError] = {}
        self._to_fit: Counter[Hashable] = Counter()
        for learner in learners:
            with suppress(PluginError), as_plugin_error(learner):  # fit() raises it again
                self._first.setdefault(sampled_by(learner), learner)
                self._to_fit[sampled_by(learner)] += 1
        for sampled, learner in self._first.items():
            with self._recording(sampled):
                self._gathered[sampled] = learner.gathering()

    def add(self, example: Example) -> None:
        """Add one example."""
        self._rows.clear()
        for sampled, gathered in self._gathered.items():
            if sampled not in self._errors:
                with self._recording(sampled):
                    gathered.add(example if is_ours(gathered) else self._own(sampled, example))

    def place(self, learner: GatheredLearner) -> int:
        """Return the position of its rows; fitting in this order frees rows soonest."""
        with suppress(PluginError), as_plugin_error(learner):
            return [*self._first].index(sampled_by(learner))
        return len(self._first)

    def fit(self, learner: GatheredLearner, *, again: bool) -> None:
        """Fit one of the learners on its rows, once, or raise a PluginError.

        Parameters
        ----------
        again : bool
            Whether it was fitted on fewer of them before.
        """
        sampled = sampled_by(learner)
        if error := self._errors.get(sampled):
            raise error
        rows = self._rows.get(sampled)
        if rows is None:
            rows = self._rows[sampled] = self._gathered[sampled].rows(learner.name)
        self._to_fit[sampled] -= 1
        if not self._to_fit[sampled]:
            del self._rows[sampled], self._gathered[sampled]
        if not is_ours(learner):
            rows = deepcopy(rows)
        if again:
            learner.learn_again(rows)
        else:
            learner.learn(rows)

    def _own(self, sampled: Hashable, example: Example) -> Example:
        """Return a copy for third-party code, with only the labels that it declared."""
        labels = labels_read(self._first[sampled].needs)
        view = example.view.twin().with_labels(labels)
        return replace(example, view=view, outcome=example.outcome.copy())

    @contextmanager
    def _recording(self, sampled: Hashable) -> Iterator[None]:
        """Record an error for the learners of these rows."""
        try:
            with as_plugin_error(self._first[sampled]):
                yield
        except PluginError as error:
            self._errors[sampled] = error


def sampled_by(learner: GatheredLearner) -> Hashable:
    """Return a key of a learner's rows: its ``sampled``, and its implementation of gathering."""
    return type(learner).gathering, learner.sampled
