"""The passes over a trace in which predictors are fitted, calibrated, refitted, and scored.

Calibration needs forecasts of moments that were not learned from, so the first fit leaves out the
last part of the training time; the final model is fitted on all of it, as in scikit-learn's
CalibratedClassifierCV with ``ensemble=False``.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.api import Example, Learner, Predictor
from torchloom_core.lab.evaluate.forecasts.alarms import Judged, scored_incidents, threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    ForecastCollector,
    Progress,
    backtest_forecasts_of_all,
    judge,
    random_scores,
)
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.fitting.build import as_plugin_error
from torchloom_core.lab.fitting.examples import Outcomes, SharedRows, examples_of
from torchloom_core.lab.fitting.feasibility import hints
from torchloom_core.lab.fitting.time_split import Fitting, days
from torchloom_core.lab.learning.calibration import Calibration, calibrate
from torchloom_core.lab.learning.fitted import FittedPredictor
from torchloom_core.lab.learning.forecast_score import ForecastScore, alarm_unit
from torchloom_core.lab.learning.gathered_learner import GatheredLearner
from torchloom_core.lab.learning.skill import with_verdict
from torchloom_core.lab.trace.feed.watched import watch

Stages = Callable[[str], Progress]
"""Begins a named stage, and returns the callback for its progress."""


class Passes:
    """Predictors that learn from one trace; those that learn from rows share their passes.

    ``usable_unfitted`` are the indices of those that forecast also without a fit. With
    ``raise_first`` an error of the first is raised; else it is left out like any other, and
    ``refused`` or ``unfitted`` says why. ``examples`` are of the final fit, ``prevalence`` of the
    first one's time.
    """

    def __init__(
        self,
        fitting: Fitting,
        plugins: Sequence[Predictor],
        stages: Stages,
        *,
        usable_unfitted: Collection[int] = (),
        raise_first: bool = False,
    ) -> None:
        self._fitting = fitting
        self.plugins = plugins
        self._stages = stages
        self._usable_unfitted = usable_unfitted
        self._raise_first = raise_first
        self.examples = examples_of(fitting, plugins[0])
        self._others = [need for plugin in plugins[1:] for need in plugin.needs]
        self.refused: dict[int, PluginError] = {}
        self.unfitted: dict[int, PluginError] = {}
        self.prevalence = 0.0
        self._fitted = 0
        self._fit_progress: Progress = lambda _: None

    def learn(self) -> None:
        """Fit all predictors on the time before ``--until``."""
        rows = self._rows()
        for example in self._passing("pass"):
            rows.add(example)
        self._fit_progress = self._stages("learn")
        self._fit_rows(rows)
        del rows  # frees memory before the others gather theirs
        self._fit_alone()

    def learn_twice(self) -> dict[int, BacktestForecasts]:
        """Fit all, first without the calibration time; return their forecasts of that time."""
        split, rows, first = self._fitting.split, self._rows(), self._rows()
        outcomes = Outcomes(
            self._fitting.bundle,
            self._fitting.task,
            every_s=self._fitting.every_s,
            known_until_ns=split.calibrated_from_ns,
        )
        self._fit_alone(first=True)
        collector: ForecastCollector | None = None
        for example in self._passing("calibrate"):
            rows.add(example)
            view = example.view
            if view.now_ns <= split.first_until_ns:
                first.add(Example(view=view, outcome=outcomes.of(view)))
            elif view.now_ns > split.calibrated_from_ns:
                if collector is None:
                    self._fit_rows(first)
                    del first  # its rows take as much memory again
                    collector = ForecastCollector(
                        watch(self._fitting.bundle), self._able, every_s=self._fitting.every_s
                    )
                collector.collect(view)
        self.prevalence = outcomes.prevalence
        forecasts = self._by_index(collector.results() if collector else ())
        self._fit_rows(rows, again=True)
        del rows
        self._fit_alone()
        return {number: one for number, one in forecasts.items() if number not in self.refused}

    def forecast(self) -> dict[int, BacktestForecasts]:
        """Return all forecasts of the time to score, without refused predictors."""
        if not self._able:
            return {}
        fitting = self._fitting
        forecasts = backtest_forecasts_of_all(
            fitting.bundle,
            self._able,
            tick_s=fitting.settings.tick_s,
            repair_s=fitting.task.repair_s,
            start_ns=fitting.split.fitted_until_ns,
            progress=self._stages(f"forecast {self.plugins[0].name}"),
            shows=fitting.task.shows,
        )
        return self._by_index(forecasts)

    def _passing(self, what: str) -> Iterator[Example]:
        """Yield the examples before ``--until`` with the needs of all predictors."""
        named = f"{what} {self.plugins[0].name}"
        return self.examples.passing(
            self._fitting.split.until_ns - 1, others=self._others, progress=self._stages(named)
        )

    @property
    def _able(self) -> list[Predictor]:
        """The predictors that make forecasts, at the fit's interval."""
        return [
            FittedPredictor(plugin, every_s=self._fitting.every_s)
            for number, plugin in enumerate(self.plugins)
            if number not in self.refused
        ]

    def _by_index(
        self, forecasts: Sequence[BacktestForecasts | PluginError]
    ) -> dict[int, BacktestForecasts]:
        """Return the forecasts by index, and refuse predictors that raised an error."""
        able = [number for number in range(len(self.plugins)) if number not in self.refused]
        found: dict[int, BacktestForecasts] = {}
        for number, forecast in zip(able, forecasts, strict=True):
            if isinstance(forecast, PluginError):
                self.refuse(number, forecast)
            else:
                found[number] = forecast
        return found

    def _rows(self) -> SharedRows:
        return SharedRows(one for one in self.plugins if isinstance(one, GatheredLearner))

    def _fit_rows(self, rows: SharedRows, *, again: bool = False) -> None:
        learners = [
            (number, plugin)
            for number, plugin in enumerate(self.plugins)
            if isinstance(plugin, GatheredLearner) and number not in self.refused
        ]
        for number, plugin in sorted(learners, key=lambda one: rows.place(one[1])):
            if again:
                self._stages(f"fit {plugin.name}")(0.0)
            with self._learning(number, plugin):
                rows.fit(plugin, again=again)

    def _fit_alone(self, *, first: bool = False) -> None:
        """Fit each predictor that needs a pass of its own."""
        for number, plugin in enumerate(self.plugins):
            if isinstance(plugin, GatheredLearner) or number in self.refused:
                continue
            if isinstance(plugin, Learner):
                progress = self._stages(f"fit {plugin.name}{' to calibrate' if first else ''}")
                with self._learning(number, plugin):
                    plugin.fit(examples_of(self._fitting, plugin, first=first, progress=progress))

    @contextmanager
    def _learning(self, number: int, plugin: Predictor) -> Iterator[None]:
        """Record why a predictor cannot learn, with likely causes."""
        try:
            with as_plugin_error(plugin.name):
                yield
        except PluginError as error:
            fitting = self._fitting
            hint = hints(fitting.bundle, fitting.task, fitting.split, plugin.needs)
            self.refuse(number, PluginError(f"{error}{hint}"), is_fit=False)
        else:
            self.unfitted.pop(number, None)
        self._fitted += 1
        self._fit_progress(self._fitted / len(self.plugins))

    def refuse(self, number: int, error: PluginError, *, is_fit: bool = True) -> None:
        """Leave a predictor out, or raise the error if it is the first, as set."""
        if number == 0 and self._raise_first:
            raise error
        unfitted = not is_fit and number in self._usable_unfitted
        (self.unfitted if unfitted else self.refused)[number] = error


@dataclass(frozen=True, eq=False)
class CalibratedForecasts:
    """Calibrated forecasts: of the first fit on the calibration time, of the final one later."""

    earlier: Judged
    later: BacktestForecasts
    calibration: Calibration


def calibrated(
    fitting: Fitting,
    name: str,
    earlier: BacktestForecasts,
    later: BacktestForecasts,
    prevalence: float,
) -> CalibratedForecasts:
    """Calibrate the forecasts of one predictor, ``name`` in errors.

    ``earlier`` are by the first fit, from its training time, with ``prevalence``, to ``until_ns``;
    ``later`` by the final fit, from there on. PluginError without a forecast to calibrate on.
    """
    split = fitting.split
    judged = judge(
        fitting.bundle,
        earlier.between(split.calibrated_from_ns, split.calibrated_until_ns),
        fitting.task,
        known_until_ns=split.until_ns,
    )
    is_judged = ~np.isnan(judged.outcome)
    if is_judged.any() and np.isnan(judged.score[is_judged]).all():
        on = days(split.calibrated_until_ns - split.calibrated_from_ns)
        raise PluginError(
            f"predictor {name}: need a probability at some labelled moment of the {on} days "
            "of calibration, was none"
        )
    calibration = calibrate(
        judged.score,
        judged.outcome,
        failures=len(scored_incidents(judged, judged.alarms(math.inf)).incident),
        prevalence=prevalence,
    )
    unseen = split.fitted_until_ns + 1, split.until_ns - 1
    carried_over = calibration.carried_over(
        earlier.between(*unseen).score, later.between(*unseen).score
    )
    scored = later.between(split.until_ns, split.end_ns)
    return CalibratedForecasts(
        replace(judged, score=calibration.apply(judged.score)),
        scored.with_score(carried_over.apply(scored.score)),
        carried_over,
    )


def random_forecasts(forecasts: CalibratedForecasts, seed: int) -> CalibratedForecasts:
    """Return random scores at the same moments."""
    earlier, later = forecasts.earlier.score, forecasts.later.score
    values = random_scores((len(earlier) + len(later), *later.shape[1:]), seed)
    return CalibratedForecasts(
        replace(forecasts.earlier, score=values[: len(earlier)]),
        forecasts.later.with_score(values[len(earlier) :]),
        Calibration(),
    )


def scored(
    fitting: Fitting,
    name: str,
    forecasts: CalibratedForecasts,
    others: Mapping[str, CalibratedForecasts],
    flags: tuple[str, ...] = (),
) -> ForecastScore:
    """Set the threshold on the calibration time, and score the time after ``until_ns``."""
    settings, split = fitting.settings, fitting.split
    budget = settings.false_alarms_per_node_day
    found = score(
        judge(fitting.bundle, forecasts.later, fitting.task),
        predictor=name,
        threshold=threshold_for(forecasts.earlier, budget),
        threshold_from=(
            f"for {alarm_unit(fitting.watched, [budget]).rate_text(budget)} on the "
            f"{days(split.calibrated_until_ns - split.calibrated_from_ns)} days of calibration"
        ),
        others={rival: other.later.score for rival, other in others.items()},
        allowed_per_node_day=budget,
        flags=flags + forecasts.calibration.flags,
    )
    return with_verdict(found)
