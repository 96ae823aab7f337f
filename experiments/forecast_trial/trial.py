"""Choose a predictor on the earlier part of a trace, then score it once on the rest.

The experiments on recorded traces define the candidates. The time up to ``cut_d`` may be used any
number of times. In each fold a candidate learns up to the fold's cut and is scored on the time
after it; the candidate with the best mean is chosen. It learns again from all the earlier time,
and is scored on the later time beside the rows to compare with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.evaluate.forecasts.alarms import Judged, threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    backtest_forecasts,
    judge,
    random_scores,
)
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.scores import auprc_of, score
from torchloom_core.lab.fitting.examples import Examples
from torchloom_core.lab.learning.fitted import FittedPredictor
from torchloom_core.lab.learning.forecast_score import ForecastScore, Interval
from torchloom_core.lab.learning.skill import RANDOM, with_verdict
from torchloom_core.lab.trace import Bundle
from torchloom_core.plugin import Learner, Predictor

DAY_S = 86_400.0
DAY_NS = 86_400 * SECOND_NS

Show = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A predictor with options; horizon and pace are the trial's.

    Attributes
    ----------
    name : str
        What this set of options is called.
    cls : type
        The predictor's class.
    """

    name: str
    cls: type[Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Learn what was known ``cut_d`` days into the trace; score from there to ``until_d``."""

    cut_d: float
    until_d: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial on a trace.

    Attributes
    ----------
    tick_s, every_s : float
        Spacing of samples, and of forecasts, seconds.
    learn_every_s : float
        Spacing of the examples, seconds.
    folds : tuple of Fold
        All of them end no later than ``cut_d``. On the last one thresholds are set.
    cut_d : float
        From here on everything is scored once, days into the trace.
    candidates : tuple of Candidate
        The candidates for the choice.
    row : str
        The candidate that is the best row of the data's own README.
    beside : tuple of str
        Candidates that are scored beside it.
    baselines : tuple of Candidate
        Others that are scored beside it and cannot be chosen.
    published : float
        The AUPRC of that row.
    false_alarms_per_node_day : float
        The budget for thresholds.
    """

    name: str
    task: Task
    tick_s: float
    every_s: float
    learn_every_s: float
    folds: tuple[Fold, ...]
    cut_d: float
    candidates: tuple[Candidate, ...]
    row: str
    beside: tuple[str, ...] = ()
    baselines: tuple[Candidate, ...] = ()
    published: float
    false_alarms_per_node_day: float
    seed: int = 0

    def __post_init__(self) -> None:
        names = [one.name for one in (*self.candidates, *self.baselines)]
        chosen = {one.name for one in self.candidates}
        if len(set(names)) < len(names) or not {self.row, *self.beside} <= chosen:
            raise PluginError(f"{self.name}: need row and beside among candidates named once each")
        if any(not fold.cut_d < fold.until_d <= self.cut_d for fold in self.folds):
            raise PluginError(f"{self.name}: need folds that end before the scored time")


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    """How good a candidate was on the folds.

    Attributes
    ----------
    auprc : tuple of float
        Of each fold.
    threshold : float
        That kept to the budget of false alarms on the last fold.
    """

    candidate: str
    auprc: tuple[float, ...]
    threshold: float

    @property
    def mean(self) -> float:
        """The mean over the folds."""
        return float(np.mean(self.auprc))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial found.

    Attributes
    ----------
    scores : tuple of ForecastScore
        The chosen one, then the rows it is compared with, on the same moments.
    above_row : Interval
        By how much its AUPRC is above that of the README's row, paired.
    """

    trial: str
    trace: str
    source: str
    licence: str
    published: float
    row: str
    seed: int
    cut_ns: int
    validated: tuple[Validated, ...]
    chosen: str
    scores: tuple[ForecastScore, ...]
    above_row: Interval
    verdict: str


def run(trial: Trial, bundle: Bundle, show: Show = lambda _: None) -> Outcome:
    """Choose on the earlier part, and score on the later one."""
    validated = tuple(_validate(trial, bundle, candidate, show) for candidate in trial.candidates)
    chosen = max(validated, key=lambda one: one.mean).candidate
    show(f"chosen: {chosen}")
    cut_ns = _moment(bundle, trial.cut_d)
    known = {one.name: one for one in (*trial.candidates, *trial.baselines)}
    beside = (*trial.beside, *(one.name for one in trial.baselines))
    names = tuple(dict.fromkeys((chosen, trial.row, *beside)))
    forecasts = {name: _final(trial, bundle, known[name], cut_ns) for name in names}
    thresholds = {one.candidate: one.threshold for one in validated}
    for one in trial.baselines:
        judged = judge_fold(trial, bundle, one, trial.folds[-1])
        thresholds[one.name] = threshold_for(judged, trial.false_alarms_per_node_day)
    guessed = random_scores(forecasts[chosen].score.shape, trial.seed)
    forecasts[RANDOM] = forecasts[chosen].with_score(guessed)
    thresholds[RANDOM] = _random_threshold(trial, bundle)
    scores = tuple(_score(trial, bundle, name, forecasts, thresholds) for name in forecasts)
    # Of one and the same predictor the difference is nought, whatever is drawn.
    above_row = scores[0].versus.get(trial.row, Interval(value=0.0, low=0.0, high=0.0))
    return Outcome(
        trial=trial.name,
        trace=bundle.manifest.name,
        source=bundle.manifest.source,
        licence=bundle.manifest.licence,
        published=trial.published,
        row=trial.row,
        seed=trial.seed,
        cut_ns=cut_ns,
        validated=validated,
        chosen=chosen,
        scores=scores,
        above_row=above_row,
        verdict=verdict_of(chosen, trial.row, above_row),
    )


def verdict_of(chosen: str, row: str, above: Interval) -> str:
    """Return the conclusion from the paired interval in words."""
    if chosen == row:
        return f"{chosen} was chosen, which is the README's row itself: neither better nor worse."
    if above.low is None or above.high is None:
        return f"There are too few incidents to compare {chosen} with {row}."
    if above.low > 0:
        return f"{chosen} is better than {row}: the whole interval is above 0."
    if above.high < 0:
        return f"{chosen} is worse than {row}: the whole interval is below 0."
    return f"{chosen} does not differ significantly from {row}: the interval contains 0."


def _moment(bundle: Bundle, days: float) -> int:
    return bundle.manifest.start_ns + round(days * DAY_NS)


def _validate(trial: Trial, bundle: Bundle, candidate: Candidate, show: Show) -> Validated:
    judged = [judge_fold(trial, bundle, candidate, fold) for fold in trial.folds]
    found = Validated(
        candidate=candidate.name,
        auprc=tuple(auprc_of(part).value for part in judged),
        threshold=threshold_for(judged[-1], trial.false_alarms_per_node_day),
    )
    each = " ".join(f"{value:.4f}" for value in found.auprc)
    show(f"{candidate.name}: {found.mean:.4f} ({each})")
    return found


def judge_fold(trial: Trial, bundle: Bundle, candidate: Candidate, fold: Fold) -> Judged:
    """Score with the outcomes known at the fold's end, so without the last horizon."""
    cut_ns, until_ns = _moment(bundle, fold.cut_d), _moment(bundle, fold.until_d)
    predictor = learn(trial, bundle, candidate, cut_ns)
    forecasts = _forecast(trial, bundle, predictor, cut_ns, until_ns - trial.task.horizon_ns)
    return judge(bundle, forecasts, trial.task, known_until_ns=until_ns)


def learn(trial: Trial, bundle: Bundle, candidate: Candidate, cut_ns: int) -> Predictor:
    """Return the predictor as it could have been fitted at ``cut_ns``.

    The last moment it learns from lies a horizon before, so that its outcome was known.
    """
    paced = {"horizon_s": trial.task.horizon_s, "every_s": trial.every_s}
    options = msgspec.convert({**candidate.options, **paced}, candidate.cls.Options)
    predictor: Predictor = candidate.cls(options)
    if isinstance(predictor, Learner):
        predictor.fit(
            Examples(
                bundle,
                predictor,
                trial.task,
                tick_s=trial.tick_s,
                every_s=trial.learn_every_s,
                until_ns=cut_ns - trial.task.horizon_ns,
                known_until_ns=cut_ns,
            )
        )
    return predictor


def _forecast(
    trial: Trial, bundle: Bundle, predictor: Predictor, from_ns: int, until_ns: int
) -> BacktestForecasts:
    fitted_predictor = FittedPredictor(predictor, every_s=trial.every_s)
    return backtest_forecasts(
        bundle,
        fitted_predictor,
        tick_s=trial.tick_s,
        repair_s=trial.task.repair_s,
        start_ns=from_ns,
        end_ns=until_ns,
        shows=trial.task.shows,
    )


def _final(trial: Trial, bundle: Bundle, candidate: Candidate, cut_ns: int) -> BacktestForecasts:
    predictor = learn(trial, bundle, candidate, cut_ns)
    return _forecast(trial, bundle, predictor, cut_ns, bundle.manifest.end_ns)


def _random_threshold(trial: Trial, bundle: Bundle) -> float:
    """Return the threshold of an uninformative score, set like the others'."""
    judged = judge_fold(trial, bundle, trial.candidates[0], trial.folds[-1])
    guessed = random_scores(judged.score.shape, trial.seed + 1)
    return threshold_for(replace(judged, score=guessed), trial.false_alarms_per_node_day)


def _score(
    trial: Trial,
    bundle: Bundle,
    name: str,
    forecasts: Mapping[str, BacktestForecasts],
    thresholds: Mapping[str, float],
) -> ForecastScore:
    scored = score(
        judge(bundle, forecasts[name], trial.task),
        predictor=name,
        threshold=thresholds[name],
        threshold_from=(
            f"for {trial.false_alarms_per_node_day:g} false alarms a node-day on the last fold"
        ),
        others={other: of.score for other, of in forecasts.items() if other != name},
    )
    return with_verdict(scored)
