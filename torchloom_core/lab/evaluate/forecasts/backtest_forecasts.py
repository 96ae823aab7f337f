"""Run predictors over a trace, and join their forecasts with the outcomes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.api import Learner, Predictor
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.interface.forecasting import call_predictor
from torchloom_core.interface.foreign import is_ours
from torchloom_core.interface.needs import windows_s
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.evaluate.forecasts.alarms import Judged
from torchloom_core.lab.evaluate.forecasts.labels import Task, incidents, outcomes
from torchloom_core.lab.evaluate.unmeasured import names_of
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event
from torchloom_core.lab.trace.feed.feed import views
from torchloom_core.lab.trace.feed.silences import events_with_ends, silences
from torchloom_core.lab.trace.feed.watched import Watched, watch
from torchloom_core.wire.events import PredictorFailed

Progress = Callable[[float], None]
"""Called with the finished share of the work, 0 to 1."""

_MAX_CELLS = 100_000_000


@dataclass(frozen=True, eq=False)
class BacktestForecasts:
    """A predictor's forecasts for the watched components at ``times_ns``, ``every_s`` apart.

    ``score`` is ``(times, components)``: probabilities, NaN without a forecast.
    """

    watched: Watched
    times_ns: Ints
    every_s: float
    score: Floats

    def between(self, from_ns: int, until_ns: int) -> "BacktestForecasts":
        """Return those with ``from_ns <= t <= until_ns``."""
        i = int(np.searchsorted(self.times_ns, from_ns))
        j = int(np.searchsorted(self.times_ns, until_ns, side="right"))
        return BacktestForecasts(self.watched, self.times_ns[i:j], self.every_s, self.score[i:j])

    def with_score(self, score: Floats) -> "BacktestForecasts":
        """Return a copy with other scores."""
        return replace(self, score=score)


def backtest_forecasts(bundle: Bundle, predictor: Predictor, **options: Any) -> BacktestForecasts:
    """Return a predictor's forecasts, as :func:`backtest_forecasts_of_all`, or raise its error."""
    (forecasts,) = backtest_forecasts_of_all(bundle, [predictor], **options)
    if isinstance(forecasts, PluginError):
        raise forecasts
    return forecasts


def backtest_forecasts_of_all(
    bundle: Bundle,
    predictors: Sequence[Predictor],
    *,
    tick_s: float,
    repair_s: float,
    start_ns: int | None = None,
    end_ns: int | None = None,
    costs: Costs | None = None,
    progress: Progress | None = None,
    shows: Callable[[Event], bool] = lambda _: True,
) -> tuple[BacktestForecasts | PluginError, ...]:
    """Run several predictors in one pass, at the ``every_s`` of the first.

    For one that raises, breaks its contract or gives no forecast, the error is returned in place of
    its forecasts; the others are not affected. A component is away for ``repair_s`` after a fatal
    fault without a known end; events that ``shows`` refuses are not visible as faults. PluginError
    if the forecasts exceed the memory limit, TraceError if the span is empty.
    """
    begin_ns = bundle.manifest.start_ns if start_ns is None else start_ns
    until_ns = bundle.manifest.end_ns if end_ns is None else end_ns
    every_s = pace_s(predictors[0], tick_s)
    collector = ForecastCollector(watch(bundle), predictors, every_s=every_s)
    for predictor in predictors:
        refuse_too_many(predictor.name, until_ns - begin_ns, every_s, len(collector.watched.ids))
    for view in views(
        bundle,
        needs=[need for predictor in predictors for need in predictor.needs],
        tick_s=tick_s,
        every_s=every_s,
        repair_s=repair_s,
        start_ns=begin_ns,
        end_ns=until_ns,
        costs=costs,
        shows=shows,
    ):
        collector.collect(view)
        if not collector.is_active:
            break
        if progress is not None:
            progress((view.now_ns - begin_ns) / (until_ns - begin_ns))
    return tuple(
        PluginError(
            f"predictor {predictor.name}: need a probability of some worker at some time, was "
            f"none in {len(found.times_ns)} views{_likely_cause(bundle, predictor, tick_s)}"
        )
        if isinstance(found, BacktestForecasts) and np.isnan(found.score).all()
        else found
        for predictor, found in zip(predictors, collector.results(), strict=True)
    )


class ForecastCollector:
    """Collects the forecasts of several predictors for ``watched``, view by view.

    A predictor that raises or breaks its contract is not called again.
    """

    def __init__(
        self, watched: Watched, predictors: Sequence[Predictor], *, every_s: float
    ) -> None:
        self.watched = watched
        self._predictors = predictors
        self._every_s = every_s
        self._row_of = {name: row for row, name in enumerate(watched.ids)}
        self._rows = np.zeros(0, dtype=np.intp)
        self._times: list[int] = []
        self._scores: list[list[Floats]] = [[] for _ in predictors]
        self._failed: dict[int, PluginError] = {}

    @property
    def is_active(self) -> bool:
        """Whether a predictor is left that has not failed."""
        return len(self._failed) < len(self._predictors)

    def collect(self, view: FleetView) -> None:
        """Add the forecasts for a view, ``every_s`` after the previous one.

        New workers may only follow those of the previous view.
        """
        if len(self._rows) < len(view):
            self._rows = np.array([self._row_of[worker] for worker in view.workers], dtype=np.intp)
        self._times.append(view.now_ns)
        for number, predictor in enumerate(self._predictors):
            if number not in self._failed:
                score = np.full(len(self._row_of), np.nan)
                try:
                    score[self._rows] = _forecast_of(predictor, view)
                except PluginError as error:
                    self._failed[number] = error
                self._scores[number].append(score)

    def results(self) -> tuple[BacktestForecasts | PluginError, ...]:
        """Return each predictor's forecasts or error; call it once, as it frees the memory."""
        times_ns = np.array(self._times, dtype=np.int64)
        shape = (len(times_ns), len(self._row_of))
        results: list[BacktestForecasts | PluginError] = []
        for number in range(len(self._predictors)):
            scores = self._scores.pop(0)  # so that only one of them is in memory twice
            results.append(
                self._failed.get(number)
                or BacktestForecasts(
                    self.watched, times_ns, self._every_s, np.reshape(scores, shape)
                )
            )
        return tuple(results)


def _forecast_of(predictor: Predictor, view: FleetView) -> Floats:
    """Return ``(workers,)`` probabilities; a third party's predictor cannot alter the view."""
    own_view = view if is_ours(predictor) else view.twin()
    answer = call_predictor(predictor.name, predictor, own_view, reasons=False)
    if isinstance(answer, PredictorFailed):
        raise PluginError(f"predictor {predictor.name}: {answer.rule}: {answer.detail}")
    probability: Floats = answer.probability
    return probability


def part_of(progress: Progress, at: int, parts: int) -> Progress:
    """Return the progress callback of one of several equal parts."""
    return lambda share: progress((at + share) / parts)


def pace_s(predictor: Predictor, tick_s: float) -> float:
    """Return the forecast interval of a predictor: whole ticks, at least one, seconds."""
    return tick_s * max(1, round(predictor.every_s / tick_s))


def _likely_cause(bundle: Bundle, predictor: Predictor, tick_s: float) -> str:
    """Return the likely cause of missing forecasts, as a clause."""
    missing = sorted(windows_s(predictor.needs).keys() - {*bundle.metrics})
    if missing:
        return f"; the trace has no {names_of(missing, bundle.metrics)}"
    if isinstance(predictor, Learner):
        return "; it may need a model from `torchloom fit`"
    window_s = max(windows_s(predictor.needs).values(), default=0.0)
    if window_s:
        return f"; its longest window is {window_s:g} s, and samples are {tick_s:g} s apart"
    return ""


def refuse_too_many(predictor: str, span_ns: int, every_s: float, components: int) -> None:
    """Raise PluginError if the forecasts exceed the memory limit."""
    moments = span_ns / SECOND_NS / every_s
    if moments * components > _MAX_CELLS:
        raise PluginError(
            f"predictor {predictor}: need at most {_MAX_CELLS} forecasts, was {moments:.0f} times "
            f"for {components} components: raise every_s, was {every_s:g}"
        )


def judge(
    bundle: Bundle, forecasts: BacktestForecasts, task: Task, *, known_until_ns: int | None = None
) -> Judged:
    """Return forecasts with their outcomes as known at ``known_until_ns`` (absent: at the end)."""
    manifest = bundle.manifest
    known_ns = manifest.end_ns if known_until_ns is None else known_until_ns
    events = events_to_judge(bundle, forecasts.watched, task)
    outcome = outcomes(
        events,
        bundle.actions(),
        forecasts.watched,
        forecasts.times_ns,
        task,
        known_until_ns=known_ns,
        span=(manifest.start_ns, manifest.end_ns),
        topology=bundle.topology(),
        silences=silences(bundle, forecasts.watched, known_until_ns=known_ns),
    )
    found = incidents(events, forecasts.watched, task, known_until_ns=known_ns)
    return Judged(task, forecasts.times_ns, forecasts.every_s, forecasts.score, outcome, found)


def events_to_judge(bundle: Bundle, watched: Watched, task: Task) -> tuple[Event, ...]:
    """Return the events; a failed component is at risk again only once it reports again.

    In a detection, an event without a known end ends after ``repair_s``.
    """
    if task.kind == "detect":
        return bundle.events()
    return events_with_ends(bundle, watched, task.repair_s)


def random_scores(shape: tuple[int, ...], seed: int) -> Floats:
    """Return random scores, uniform in [0, 1), the same for a seed."""
    return np.random.default_rng([seed, 0x7A6E]).random(shape)


def day_text(bundle: Bundle, ts_ns: int) -> str:
    """Return a time as days since the start of the trace, such as ``30 d``."""
    return f"{(ts_ns - bundle.manifest.start_ns) / (86_400 * SECOND_NS):.4g} d"
