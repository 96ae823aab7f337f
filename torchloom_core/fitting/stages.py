"""One fit's trace, divided in time: teach, ask, calibrate, score, each on its own stretch.

The predictor and what it is compared with go through the same steps, see
:mod:`torchloom_core.fitting.time_split`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from torchloom_core.errors import PluginError, TorchloomError
from torchloom_core.evaluate.forecasts.alarms import Judged, threshold_for, told
from torchloom_core.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    Progress,
    judge,
    random_scores,
    refuse_too_many,
)
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.forecasts.leaky import leaky
from torchloom_core.evaluate.forecasts.scores import score
from torchloom_core.fitting.examples import Examples
from torchloom_core.fitting.time_split import days, split
from torchloom_core.learning.alarm_rate import alarm_unit
from torchloom_core.learning.calibration import Calibration, calibrate
from torchloom_core.learning.forecast_score import ForecastScore
from torchloom_core.learning.gathered_learner import GatheredLearner
from torchloom_core.learning.skill import with_verdict
from torchloom_core.plugin.api import Predictor
from torchloom_core.plugin.foreign import one_line
from torchloom_core.plugin.needs import PredictorNeed
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import watch


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What a fit is told beside the predictor's own options.

    Attributes
    ----------
    until_ns : int
        Nothing that was known only after this is used; the time after it is scored.
    tick_s : float
        Spacing of the samples in windows, seconds.
    repair_s : float
        How long a component is away after a failure whose end nobody knows, seconds.
    every_s : float, optional
        How often the predictor is asked; absent: as often as it says.
    task : "forecast" or "detect"
        What is to be told; the horizon is the predictor's.
    lead_s, kinds
        As in :class:`~torchloom_core.evaluate.forecasts.labels.Task`.
    false_alarms_per_node_day : float
        The budget that the threshold keeps.
    known_before : tuple of str
        What was known beforehand, whatever it tells of how a component ends: metrics, attributes,
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
        """Return what is to be told with a horizon."""
        return Task(
            horizon_s=horizon_s,
            repair_s=self.repair_s,
            kind=self.task,
            lead_s=self.lead_s,
            kinds=self.kinds,
        )

    def pace_s(self, plugin: Predictor) -> float:
        """Return how often a predictor is asked: whole ticks, at least one."""
        every_s = plugin.every_s if self.every_s is None else self.every_s
        return self.tick_s * max(1, round(every_s / self.tick_s))


@dataclass(frozen=True, eq=False)
class Said:
    """What one predictor said, calibrated.

    Attributes
    ----------
    earlier : Judged
        Of the time that it was calibrated on, when it had not learned from that.
    later : BacktestForecasts
        Of the time to score, when it had learned from all that came before.
    """

    earlier: Judged
    later: BacktestForecasts
    calibration: Calibration


class Fitting:
    """One trace, divided for one predictor; what it is compared with is treated alike.

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
        asked_ns = self.split.end_ns - self.split.calibrated_from_ns
        watched = watch(bundle)
        self.watched = watched.kind
        refuse_too_many(plugin.name, asked_ns, self.every_s, len(watched.ids))

    def examples(
        self,
        plugin: Predictor,
        *,
        first: bool = False,
        progress: Progress = lambda _: None,
    ) -> Examples:
        """Return what a predictor learns from, as it was known then.

        Parameters
        ----------
        first : bool
            Whether that is what comes before the calibration; else all before ``until_ns``.
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
    ) -> Said:
        """Return what one said, calibrated.

        Parameters
        ----------
        name : str
            Whose it is, for errors.
        earlier, later : BacktestForecasts
            When it had learned without the time to calibrate on, from then on until ``until_ns``;
            when it had learned from that as well, from there on.
        prevalence : float
            Of the time that it had learned from.

        Raises
        ------
        PluginError
            If it said nothing at all moments to calibrate on.
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
                f"predictor {name}: need a probability at some judged moment of the {on} days it "
                "is calibrated on, was none"
            )
        calibration = calibrate(
            judged.score,
            judged.outcome,
            failures=len(told(judged, judged.alarms(math.inf)).incident),
            prevalence=prevalence,
        )
        unseen = split.fitted_until_ns + 1, split.until_ns - 1
        carried_over = calibration.carried_over(
            earlier.between(*unseen).score, later.between(*unseen).score
        )
        scored = later.between(split.until_ns, split.end_ns)
        return Said(
            replace(judged, score=calibration.apply(judged.score)),
            scored.with_score(carried_over.apply(scored.score)),
            carried_over,
        )

    def leaky(self, needs: Sequence[PredictorNeed]) -> tuple[str, ...]:
        """Return a flag for each of what is read that knows the future.

        What is said to be known beforehand is not asked about.
        """
        return leaky(
            self.bundle,
            needs,
            self.task,
            tick_s=self.settings.tick_s,
            every_s=self.every_s,
            known_before=self.settings.known_before,
        )

    def guess(self, said: Said) -> Said:
        """Return numbers at the same moments that know nothing."""
        earlier, later = said.earlier.score, said.later.score
        values = random_scores((len(earlier) + len(later), *later.shape[1:]), self.settings.seed)
        return Said(
            replace(said.earlier, score=values[: len(earlier)]),
            said.later.with_score(values[len(earlier) :]),
            Calibration(),
        )

    def score(
        self,
        name: str,
        said: Said,
        others: Mapping[str, Said],
        flags: tuple[str, ...] = (),
    ) -> ForecastScore:
        """Set the threshold on the calibration's time, and score the time after it."""
        settings, split = self.settings, self.split
        budget = settings.false_alarms_per_node_day
        scored = score(
            judge(self.bundle, said.later, self.task),
            predictor=name,
            threshold=threshold_for(said.earlier, budget),
            threshold_from=(
                f"for {alarm_unit(self.watched, [budget]).said(budget)} on the "
                f"{days(split.calibrated_until_ns - split.calibrated_from_ns)} days it "
                "was calibrated on"
            ),
            others={rival: other.later.score for rival, other in others.items()},
            allowed_per_node_day=budget,
            flags=flags + said.calibration.flags,
        )
        return with_verdict(scored)


@contextmanager
def as_plugin_error(
    plugin: Predictor | GatheredLearner, what: str = "cannot fit"
) -> Iterator[None]:
    """Say of what a predictor raises, also to end the process, that it was the predictor."""
    try:
        yield
    except (TorchloomError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"predictor {plugin.name}: {what}: {one_line(error)}") from error
