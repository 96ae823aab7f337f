"""The steps of one fit: learn, forecast, calibrate, score, each on its own part of the time.

The predictor and its baselines go through the same steps, see
:mod:`torchloom_core.lab.fitting.time_split`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from torchloom_core.floor.errors import PluginError, TorchloomError
from torchloom_core.interface.api import Predictor
from torchloom_core.interface.foreign import one_line
from torchloom_core.interface.needs import PredictorNeed
from torchloom_core.lab.evaluate.forecasts.alarms import Judged, scored_incidents, threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    Progress,
    judge,
    random_scores,
    refuse_too_many,
)
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.fitting.examples import Examples
from torchloom_core.lab.fitting.time_split import days, split
from torchloom_core.lab.learning.alarm_rate import alarm_unit
from torchloom_core.lab.learning.calibration import Calibration, calibrate
from torchloom_core.lab.learning.forecast_score import ForecastScore
from torchloom_core.lab.learning.gathered_learner import GatheredLearner
from torchloom_core.lab.learning.skill import with_verdict
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What a fit is given beside the predictor's own options.

    Attributes
    ----------
    until_ns : int
        End of training: anything that became known later is not used; the time after it is scored.
    tick_s : float
        Spacing of the samples in windows, seconds.
    repair_s : float
        Shortest outage after a failure with an unknown end, seconds.
    every_s : float, optional
        Forecast interval, seconds; by default the predictor's own.
    task : "forecast" or "detect"
        What the model predicts; the horizon is the predictor's.
    lead_s, kinds
        As in :class:`~torchloom_core.lab.evaluate.forecasts.labels.Task`.
    false_alarms_per_node_day : float
        The budget for the threshold.
    known_before : tuple of str
        Inputs declared as known beforehand, which are not checked for leaks: metrics, attributes,
        kinds of event, ``its rack`` and ``time in service``.
    """

    until_ns: int
    tick_s: float
    repair_s: float
    every_s: float | None = None
    task: Literal["forecast", "detect"] = "forecast"
    lead_s: float = 0.0
    kinds: tuple[str, ...] = ()
    false_alarms_per_node_day: float = 0.01
    seed: int = 0
    known_before: tuple[str, ...] = ()

    def task_of(self, horizon_s: float) -> Task:
        """Return the task with a horizon."""
        return Task(
            horizon_s=horizon_s,
            repair_s=self.repair_s,
            kind=self.task,
            lead_s=self.lead_s,
            kinds=self.kinds,
        )

    def pace_s(self, plugin: Predictor) -> float:
        """Return the forecast interval of a predictor: whole ticks, at least one."""
        every_s = plugin.every_s if self.every_s is None else self.every_s
        return self.tick_s * max(1, round(every_s / self.tick_s))


@dataclass(frozen=True, eq=False)
class CalibratedForecasts:
    """The forecasts of one predictor, calibrated.

    Attributes
    ----------
    earlier : Judged
        On the calibration time, by the first fit.
    later : BacktestForecasts
        On the time to score, by the final fit.
    """

    earlier: Judged
    later: BacktestForecasts
    calibration: Calibration


class Fitting:
    """One trace, split in time for one predictor and its baselines.

    Attributes
    ----------
    watched : str
        Kind of the components that play the workers.
    """

    def __init__(self, bundle: Bundle, settings: FitSettings, plugin: Predictor) -> None:
        self.bundle = bundle
        self.settings = settings
        self.task = settings.task_of(plugin.horizon_s)
        self.every_s = settings.pace_s(plugin)
        self.split = split(bundle, self.task, until_ns=settings.until_ns, every_s=self.every_s)
        forecast_ns = self.split.end_ns - self.split.calibrated_from_ns
        watched = watch(bundle)
        self.watched = watched.kind
        refuse_too_many(plugin.name, forecast_ns, self.every_s, len(watched.ids))

    def examples(
        self,
        plugin: Predictor,
        *,
        first: bool = False,
        progress: Progress = lambda _: None,
    ) -> Examples:
        """Return the training examples of a predictor, as they were known then.

        Parameters
        ----------
        first : bool
            Only those before the calibration; else all before ``until_ns``.
        """
        split = self.split
        return Examples(
            self.bundle,
            plugin,
            self.task,
            tick_s=self.settings.tick_s,
            every_s=self.every_s,
            until_ns=split.first_until_ns if first else split.fitted_until_ns,
            known_until_ns=split.calibrated_from_ns if first else split.until_ns,
            progress=progress,
        )

    def calibrated(
        self, name: str, earlier: BacktestForecasts, later: BacktestForecasts, prevalence: float
    ) -> CalibratedForecasts:
        """Calibrate the forecasts of one predictor.

        Parameters
        ----------
        name : str
            The predictor, for errors.
        earlier, later : BacktestForecasts
            By the first fit, from its training time to ``until_ns``; by the final fit, from there
            on.
        prevalence : float
            Of the first fit's training time.

        Raises
        ------
        PluginError
            If there is no forecast in the calibration time.
        """
        split = self.split
        judged = judge(
            self.bundle,
            earlier.between(split.calibrated_from_ns, split.calibrated_until_ns),
            self.task,
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

    def find_leaky_inputs(self, needs: Sequence[PredictorNeed]) -> tuple[str, ...]:
        """Return a flag for each leaky input, except those in ``known_before``."""
        return find_leaky_inputs(
            self.bundle,
            needs,
            self.task,
            tick_s=self.settings.tick_s,
            every_s=self.every_s,
            known_before=self.settings.known_before,
        )

    def random(self, forecasts: CalibratedForecasts) -> CalibratedForecasts:
        """Return random scores at the same moments."""
        earlier, later = forecasts.earlier.score, forecasts.later.score
        values = random_scores((len(earlier) + len(later), *later.shape[1:]), self.settings.seed)
        return CalibratedForecasts(
            replace(forecasts.earlier, score=values[: len(earlier)]),
            forecasts.later.with_score(values[len(earlier) :]),
            Calibration(),
        )

    def score(
        self,
        name: str,
        forecasts: CalibratedForecasts,
        others: Mapping[str, CalibratedForecasts],
        flags: tuple[str, ...] = (),
    ) -> ForecastScore:
        """Set the threshold on the calibration time, and score the time after ``until_ns``."""
        settings, split = self.settings, self.split
        budget = settings.false_alarms_per_node_day
        scored = score(
            judge(self.bundle, forecasts.later, self.task),
            predictor=name,
            threshold=threshold_for(forecasts.earlier, budget),
            threshold_from=(
                f"for {alarm_unit(self.watched, [budget]).rate_text(budget)} on the "
                f"{days(split.calibrated_until_ns - split.calibrated_from_ns)} days of calibration"
            ),
            others={rival: other.later.score for rival, other in others.items()},
            allowed_per_node_day=budget,
            flags=flags + forecasts.calibration.flags,
        )
        return with_verdict(scored)


@contextmanager
def as_plugin_error(
    plugin: Predictor | GatheredLearner, what: str = "cannot fit"
) -> Iterator[None]:
    """Turn whatever a predictor raises, also SystemExit, into a PluginError with its name."""
    try:
        yield
    except (TorchloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"predictor {plugin.name}: {what}: {one_line(error)}") from error
