"""The passes over a trace in which predictors learn, are calibrated, learn again, and are asked.

What is calibrated has to be asked of moments that it did not learn from, so it learns without the
last part of the time first; what is kept has learned from all of it, as in scikit-learn's
CalibratedClassifierCV with ``ensemble=False``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torchloom_core.errors import PluginError
from torchloom_core.evaluate.forecasts.backtest_forecasts import (
    Asking,
    BacktestForecasts,
    Progress,
    backtest_forecasts_of_all,
)
from torchloom_core.fitting.examples import Outcomes
from torchloom_core.fitting.hints import hints
from torchloom_core.fitting.shared_rows import SharedRows
from torchloom_core.fitting.stages import Fitting, Said, as_plugin_error
from torchloom_core.learning.fitted import FittedPredictor
from torchloom_core.learning.gathered_learner import GatheredLearner
from torchloom_core.plugin.api import Example, Learner, Predictor
from torchloom_core.trace.feed.watched import watch

Stages = Callable[[str], Progress]
"""Begins a named stage, and returns what is told how much of it is done."""


class Passes:
    """Predictors that learn from one trace; those that learn from rows share their passes.

    Parameters
    ----------
    plugins : sequence of Predictor
        What the first of them reads is looked at for columns that know too much.
    asked_anyway : collection of int
        The places of those that have something to say also if there is nothing to learn from.
    for_the_first : bool
        Whether what is wrong with the first is raised; else it goes on with the others.

    Attributes
    ----------
    examples : Examples
        What they learn from in the end.
    refused : dict of int to PluginError
        Why one cannot be asked, by its place.
    untaught : dict of int to PluginError
        Why one could not learn that is asked anyway.
    prevalence : float
        Of the time that was learned from first.
    """

    def __init__(
        self,
        fitting: Fitting,
        plugins: Sequence[Predictor],
        stages: Stages,
        *,
        asked_anyway: Collection[int] = (),
        for_the_first: bool = False,
    ) -> None:
        self._fitting = fitting
        self._plugins = plugins
        self._stages = stages
        self._asked_anyway = asked_anyway
        self._for_the_first = for_the_first
        self.examples = fitting.examples(plugins[0])
        self._others = [need for plugin in plugins[1:] for need in plugin.needs]
        self.refused: dict[int, PluginError] = {}
        self.untaught: dict[int, PluginError] = {}
        self.prevalence = 0.0
        self._taught = 0
        self._teaching: Progress = lambda _: None

    def learn(self) -> None:
        """Let all learn from the time before ``--until``."""
        rows = self._rows()
        for example in self._passing("pass"):
            rows.add(example)
        self._teaching = self._stages("learn")
        self._teach_rows(rows)
        del rows  # before others gather theirs
        self._teach_alone()

    def learn_twice(self) -> dict[int, BacktestForecasts]:
        """Let all learn, first without the time to calibrate on; return what they say of that.

        One that cannot be asked is not in it.
        """
        split, rows, first = self._fitting.split, self._rows(), self._rows()
        came = Outcomes(
            self._fitting.bundle,
            self._fitting.task,
            every_s=self._fitting.every_s,
            known_until_ns=split.calibrated_from_ns,
        )
        self._teach_alone(first=True)
        asking: Asking | None = None
        for example in self._passing("calibrate"):
            rows.add(example)
            view = example.view
            if view.now_ns <= split.first_until_ns:
                first.add(Example(view=view, outcome=came.of(view)))
            elif view.now_ns > split.calibrated_from_ns:
                if asking is None:
                    self._teach_rows(first)
                    del first  # what it gathered takes as much memory again
                    asking = self._asking()
                asking.ask(view)
        self.prevalence = came.prevalence
        said = self._by_place(asking.answers() if asking else ())
        self._teach_rows(rows, again=True)
        del rows
        self._teach_alone()
        return {number: one for number, one in said.items() if number not in self.refused}

    def ask(self) -> dict[int, BacktestForecasts]:
        """Return what all say of the time to score; one that cannot be asked is not in it."""
        if not self._able:
            return {}
        fitting = self._fitting
        answers = backtest_forecasts_of_all(
            fitting.bundle,
            self._able,
            tick_s=fitting.settings.tick_s,
            repair_s=fitting.task.repair_s,
            start_ns=fitting.split.fitted_until_ns,
            progress=self._stages(f"ask {self._plugins[0].name}"),
            shows=fitting.task.shows,
        )
        return self._by_place(answers)

    def calibrated(
        self, earlier: Mapping[int, BacktestForecasts], later: Mapping[int, BacktestForecasts]
    ) -> dict[int, Said]:
        """Return what all have said, calibrated; one that cannot be is not in it."""
        found: dict[int, Said] = {}
        for number, said in later.items():
            name = self._plugins[number].name
            try:
                found[number] = self._fitting.calibrated(
                    name, earlier[number], said, self.prevalence
                )
            except PluginError as error:
                self._refuse(number, error, self.refused)
        return found

    def _asking(self) -> Asking:
        return Asking(watch(self._fitting.bundle), self._able, every_s=self._fitting.every_s)

    def _passing(self, what: str) -> Iterator[Example]:
        """Yield all that is learned from, as whoever is among the predictors needs it."""
        named = f"{what} {self._plugins[0].name}"
        return self.examples.passing(
            self._fitting.split.until_ns - 1, others=self._others, progress=self._stages(named)
        )

    @property
    def _able(self) -> list[Predictor]:
        """Those that can be asked, as often as the fit says."""
        return [
            FittedPredictor(plugin, every_s=self._fitting.every_s)
            for number, plugin in enumerate(self._plugins)
            if number not in self.refused
        ]

    def _by_place(
        self, answers: Sequence[BacktestForecasts | PluginError]
    ) -> dict[int, BacktestForecasts]:
        """Return the answers of those that can be asked; one that could not cannot any more."""
        able = [number for number in range(len(self._plugins)) if number not in self.refused]
        found: dict[int, BacktestForecasts] = {}
        for number, answer in zip(able, answers, strict=True):
            if isinstance(answer, PluginError):
                self._refuse(number, answer, self.refused)
            else:
                found[number] = answer
        return found

    def _rows(self) -> SharedRows:
        return SharedRows(one for one in self._plugins if isinstance(one, GatheredLearner))

    def _teach_rows(self, rows: SharedRows, *, again: bool = False) -> None:
        learners = [
            (number, plugin)
            for number, plugin in enumerate(self._plugins)
            if isinstance(plugin, GatheredLearner) and number not in self.refused
        ]
        for number, plugin in sorted(learners, key=lambda one: rows.place(one[1])):
            if again:
                self._stages(f"fit {plugin.name}")(0.0)
            with self._learning(number, plugin):
                rows.teach(plugin, again=again)

    def _teach_alone(self, *, first: bool = False) -> None:
        """Let each learn that wants a pass of its own."""
        for number, plugin in enumerate(self._plugins):
            if isinstance(plugin, GatheredLearner) or number in self.refused:
                continue
            if isinstance(plugin, Learner):
                progress = self._stages(f"fit {plugin.name}{' to calibrate' if first else ''}")
                with self._learning(number, plugin):
                    plugin.fit(self._fitting.examples(plugin, first=first, progress=progress))

    @contextmanager
    def _learning(self, number: int, plugin: Predictor) -> Iterator[None]:
        """Keep why one cannot learn, and what may be the cause."""
        try:
            with as_plugin_error(plugin):
                yield
        except PluginError as error:
            fitting = self._fitting
            hint = hints(fitting.bundle, fitting.task, fitting.split, plugin.needs)
            self._refuse(number, PluginError(f"{error}{hint}"), self.untaught)
        else:
            self.untaught.pop(number, None)
        self._taught += 1
        self._teaching(self._taught / len(self._plugins))

    def _refuse(self, number: int, error: PluginError, anyway: dict[int, PluginError]) -> None:
        if number == 0 and self._for_the_first:
            raise error
        (anyway if number in self._asked_anyway else self.refused)[number] = error
