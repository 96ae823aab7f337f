"""Training examples from a trace, and the rows that learners gather from them."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy

import numpy as np
from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.api import Example, Predictor
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.foreign import is_ours
from torchloom_core.interface.needs import PredictorNeed, labels_read, windows_s
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.evaluate.forecasts.alarms import Bools
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import Progress, events_to_judge
from torchloom_core.lab.evaluate.forecasts.labels import Task, outcomes
from torchloom_core.lab.fitting.build import as_plugin_error
from torchloom_core.lab.fitting.time_split import Fitting
from torchloom_core.lab.learning.forecast_score import MAX_PREVALENCE, SUSPICIOUS_FEATURE, TOO_GOOD
from torchloom_core.lab.learning.gathered_learner import GatheredLearner, Gathering
from torchloom_core.lab.learning.ranking import Ranking
from torchloom_core.lab.learning.rows import Rows, RowSample
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.feed import views
from torchloom_core.lab.trace.feed.silences import silences
from torchloom_core.lab.trace.feed.watched import watch

_AT_ONCE = 256
_MAX_HEALTHY = 50_000
_MIN_FAILURES = 10


class Outcomes:
    """Outcomes of moments ``every_s`` apart, as known at ``known_until_ns``, and their counts."""

    def __init__(self, bundle: Bundle, task: Task, *, every_s: float, known_until_ns: int) -> None:
        self._bundle = bundle
        self._watched = watched = watch(bundle)
        self._task = task
        self._every_ns = round(every_s * SECOND_NS)
        self._known_until_ns = known_until_ns
        self._row_of = {name: row for row, name in enumerate(watched.ids)}
        self._events = events_to_judge(bundle, watched, task)
        self._silences = silences(bundle, watched, known_until_ns=known_until_ns)
        self._begin_ns = 0
        self._counted_until_ns = -1
        self._came: Floats = np.zeros((0, 0))
        self._rows = np.zeros(0, dtype=np.intp)
        self.moments = 0
        self.positives = 0

    def of(self, view: FleetView) -> Floats:
        """Return ``(workers,)`` outcomes of a view, computed for many at once, counted once."""
        if len(self._rows) < len(view):
            self._rows = np.array([self._row_of[worker] for worker in view.workers], dtype=np.intp)
        at = (view.now_ns - self._begin_ns) // self._every_ns
        if not 0 <= at < len(self._came):
            self._begin_ns, at = view.now_ns, 0
            self._came = outcomes(
                self._events,
                self._bundle.actions(),
                self._watched,
                view.now_ns + np.arange(_AT_ONCE, dtype=np.int64) * self._every_ns,
                self._task,
                known_until_ns=self._known_until_ns,
                span=(self._bundle.manifest.start_ns, self._bundle.manifest.end_ns),
                topology=self._bundle.topology(),
                silences=self._silences,
            )
        outcome: Floats = self._came[at][self._rows[: len(view)]]
        if view.now_ns > self._counted_until_ns:
            self._counted_until_ns = view.now_ns
            self.moments += int(np.count_nonzero(~np.isnan(outcome)))
            self.positives += int(np.count_nonzero(outcome == 1.0))
        return outcome

    @property
    def prevalence(self) -> float:
        """The share of positive moments so far; 0 without any."""
        return self.positives / self.moments if self.moments else 0.0


class Examples:
    """Iterate over the examples from the trace's start to ``until_ns``, any number of times.

    Views have what the predictor needs. A sample of the newest values of ``metrics``, which it
    reads, is stored to look for suspicious columns.
    """

    def __init__(
        self,
        bundle: Bundle,
        predictor: Predictor,
        task: Task,
        *,
        tick_s: float,
        every_s: float,
        until_ns: int,
        known_until_ns: int,
        progress: Progress = lambda _: None,
    ) -> None:
        self._bundle = bundle
        self._predictor = predictor
        self._task = task
        self._tick_s = tick_s
        self._every_s = every_s
        self._until_ns = until_ns
        self._progress = progress
        self.metrics = tuple(windows_s(predictor.needs))
        self._labels = labels_read(predictor.needs)
        self._sample = RowSample(_MAX_HEALTHY, seed=0)
        self._outcomes = Outcomes(bundle, task, every_s=every_s, known_until_ns=known_until_ns)

    def __iter__(self) -> Iterator[Example]:
        for example in self.passing(self._until_ns, progress=self._progress):
            view = example.view
            shown = view if is_ours(self._predictor) else view.twin()
            yield replace(example, view=shown.with_labels(self._labels))

    def passing(
        self, until_ns: int, *, others: Iterable[PredictorNeed] = (), progress: Progress
    ) -> Iterator[Example]:
        """Yield examples with all needs; after the training time all outcomes are NaN."""
        start_ns = self._bundle.manifest.start_ns
        for view in views(
            self._bundle,
            needs=[*self._predictor.needs, *others],
            tick_s=self._tick_s,
            every_s=self._every_s,
            repair_s=self._task.repair_s,
            end_ns=until_ns,
            shows=self._task.shows,
        ):
            to_learn_from = view.now_ns <= self._until_ns
            outcome = self._outcomes.of(view) if to_learn_from else np.full(len(view), np.nan)
            if self.metrics:
                newest = np.column_stack([view.latest(metric) for metric in self.metrics])
                self._sample.add(view.now_ns, newest, outcome)
            yield Example(view=view, outcome=outcome)
            progress((view.now_ns - start_ns) / (until_ns - start_ns))

    @property
    def moments(self) -> int:
        """Labelled moments of workers so far."""
        return self._outcomes.moments

    @property
    def positives(self) -> int:
        """The positive ones of them."""
        return self._outcomes.positives

    def flags(self) -> tuple[str, ...]:
        """Return a flag for each metric whose newest value alone separates the failures."""
        if not self.metrics or not 0 < self.positives < self.moments:
            return ()
        rows = self._sample.rows(self._predictor.name)
        return suspicious_features(rows.features, rows.failed, self.metrics)


def suspicious_features(values: Floats, failed: Bools, names: Sequence[str]) -> tuple[str, ...]:
    """Return a flag for each column that alone separates ``failed`` suspiciously well."""
    if failed.sum() < _MIN_FAILURES or failed.mean() > MAX_PREVALENCE:
        return ()
    flags = []
    for column, name in zip(values.T, names, strict=True):
        missing = np.isnan(column)
        ranks = (
            np.where(missing, -np.inf, column),
            np.where(missing, -np.inf, -column),
            missing.astype(np.float64),
        )
        if max(Ranking.of(rank, failed).average_precision for rank in ranks) >= TOO_GOOD:
            flags.append(f"{SUSPICIOUS_FEATURE}: {name}")
    return tuple(flags)


def examples_of(
    fitting: Fitting,
    plugin: Predictor,
    *,
    first: bool = False,
    progress: Progress = lambda _: None,
) -> Examples:
    """Return the training examples of a predictor; with ``first`` those before calibration."""
    split = fitting.split
    return Examples(
        fitting.bundle,
        plugin,
        fitting.task,
        tick_s=fitting.settings.tick_s,
        every_s=fitting.every_s,
        until_ns=split.first_until_ns if first else split.fitted_until_ns,
        known_until_ns=split.calibrated_from_ns if first else split.until_ns,
        progress=progress,
    )


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
            with suppress(PluginError), as_plugin_error(learner.name):  # fit() raises it again
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
        with suppress(PluginError), as_plugin_error(learner.name):
            return [*self._first].index(sampled_by(learner))
        return len(self._first)

    def fit(self, learner: GatheredLearner, *, again: bool) -> None:
        """Fit one of the learners on its rows, once, or raise a PluginError."""
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
            with as_plugin_error(self._first[sampled].name):
                yield
        except PluginError as error:
            self._errors[sampled] = error


def sampled_by(learner: GatheredLearner) -> Hashable:
    """Return a key of a learner's rows: its ``sampled``, and its implementation of gathering."""
    return type(learner).gathering, learner.sampled
