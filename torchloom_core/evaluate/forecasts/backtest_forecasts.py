"""What a predictor would have said of a trace, moment by moment, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Costs
from torchloom_core.errors import PluginError
from torchloom_core.evaluate.forecasts.alarms import Judged
from torchloom_core.evaluate.forecasts.labels import Task, incidents, outcomes
from torchloom_core.evaluate.unmeasured import names_of
from torchloom_core.plugin.api import Learner, Predictor
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.plugin.forecasting import ask_predictor
from torchloom_core.plugin.foreign import is_ours
from torchloom_core.plugin.needs import windows_s
from torchloom_core.plugin.view import FleetView
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import Event
from torchloom_core.trace.feed.ends import events_with_ends
from torchloom_core.trace.feed.silences import silences
from torchloom_core.trace.feed.views import views
from torchloom_core.trace.feed.watched import Watched, watch
from torchloom_core.wire.events import PredictorFailed

Progress = Callable[[float], None]
"""Told how much of a stretch of time is done, 0 to 1."""

_MAX_CELLS = 100_000_000


@dataclass(frozen=True, eq=False)
class BacktestForecasts:
    """A predictor's answers to all views of a stretch of time.

    Attributes
    ----------
    watched : Watched
        Whom the columns are of.
    times_ns : (times,) int64
    every_s : float
        Seconds between them.
    score : (times, components) float64
        Probabilities, NaN where it did not judge.
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
        """Return other scores at the same moments."""
        return replace(self, score=score)


def backtest_forecasts(
    bundle: Bundle,
    predictor: Predictor,
    *,
    tick_s: float,
    repair_s: float,
    start_ns: int | None = None,
    end_ns: int | None = None,
    costs: Costs | None = None,
    progress: Progress | None = None,
    shows: Callable[[Event], bool] = lambda _: True,
) -> BacktestForecasts:
    """Ask the predictor at every ``every_s`` of the span, with just what was known then.

    The parameters are those of :func:`backtest_forecasts_of_all`.

    Raises
    ------
    PluginError, TraceError
        As :func:`backtest_forecasts_of_all`, and what that has in the place of the answers.
    """
    (said,) = backtest_forecasts_of_all(
        bundle,
        [predictor],
        tick_s=tick_s,
        repair_s=repair_s,
        start_ns=start_ns,
        end_ns=end_ns,
        costs=costs,
        progress=progress,
        shows=shows,
    )
    if isinstance(said, PluginError):
        raise said
    return said


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
    """Ask several predictors in one pass, as often as the first of them says.

    One that raises, returns garbage such as a wrong shape, or never judges has its error in the
    place of its answers, and costs the others nothing.

    Parameters
    ----------
    repair_s : float
        How long a component is away after a fatal fault whose end nobody knows.
    shows : callable
        Which events they are told of as faults: those that a task ``shows``.

    Raises
    ------
    PluginError
        If more forecasts would have to be kept than memory should hold.
    TraceError
        If the span is empty.
    """
    begin_ns = bundle.manifest.start_ns if start_ns is None else start_ns
    until_ns = bundle.manifest.end_ns if end_ns is None else end_ns
    every_s = pace_s(predictors[0], tick_s)
    asking = Asking(watch(bundle), predictors, every_s=every_s)
    for predictor in predictors:
        refuse_too_many(predictor.name, until_ns - begin_ns, every_s, len(asking.watched.ids))
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
        asking.ask(view)
        if not asking.able:
            break
        if progress is not None:
            progress((view.now_ns - begin_ns) / (until_ns - begin_ns))
    return tuple(
        PluginError(
            f"predictor {predictor.name}: need a probability of some worker at some time, was "
            f"none in {len(said.times_ns)} views{_likely_cause(bundle, predictor, tick_s)}"
        )
        if isinstance(said, BacktestForecasts) and np.isnan(said.score).all()
        else said
        for predictor, said in zip(predictors, asking.answers(), strict=True)
    )


class Asking:
    """Asks predictors of each view that passes, and keeps what they say.

    One that raises, or returns garbage such as a wrong shape, is asked no more.

    Attributes
    ----------
    watched : Watched
        Whom they are asked about.
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
    def able(self) -> bool:
        """Whether anybody can still be asked."""
        return len(self._failed) < len(self._predictors)

    def ask(self, view: FleetView) -> None:
        """Ask all of one view, which is ``every_s`` after the one before.

        Its workers are those of the view before, and any that came since.
        """
        if len(self._rows) < len(view):
            self._rows = np.array([self._row_of[worker] for worker in view.workers], dtype=np.intp)
        self._times.append(view.now_ns)
        for number, predictor in enumerate(self._predictors):
            if number not in self._failed:
                score = np.full(len(self._row_of), np.nan)
                try:
                    score[self._rows] = _asked(predictor, view)
                except PluginError as error:
                    self._failed[number] = error
                self._scores[number].append(score)

    def answers(self) -> tuple[BacktestForecasts | PluginError, ...]:
        """Return what each has said, once; for one that cannot be asked, why."""
        times_ns = np.array(self._times, dtype=np.int64)
        shape = (len(times_ns), len(self._row_of))
        answers: list[BacktestForecasts | PluginError] = []
        for number in range(len(self._predictors)):
            said = self._scores.pop(0)  # so that only one of them is there twice at a time
            answers.append(
                self._failed.get(number)
                or BacktestForecasts(self.watched, times_ns, self._every_s, np.reshape(said, shape))
            )
        return tuple(answers)


def _asked(predictor: Predictor, view: FleetView) -> Floats:
    """Return ``(workers,)`` probabilities, NaN where it does not judge.

    Whoever is asked after a foreign one is shown the same as if it had not been there.
    """
    shown = view if is_ours(predictor) else view.twin()
    answer = ask_predictor(predictor.name, predictor, shown, reasons=False)
    if isinstance(answer, PredictorFailed):
        raise PluginError(f"predictor {predictor.name}: {answer.rule}: {answer.detail}")
    probability: Floats = answer.probability
    return probability


def part_of(progress: Progress, at: int, parts: int) -> Progress:
    """Return what is told how much of one of several parts alike is done."""
    return lambda share: progress((at + share) / parts)


def pace_s(predictor: Predictor, tick_s: float) -> float:
    """Return how often a predictor is asked: whole ticks, at least one."""
    return tick_s * max(1, round(predictor.every_s / tick_s))


def _likely_cause(bundle: Bundle, predictor: Predictor, tick_s: float) -> str:
    """Return what may keep a predictor from judging anybody, as a clause."""
    missing = sorted(windows_s(predictor.needs).keys() - {*bundle.metrics})
    if missing:
        return f"; the trace has no {names_of(missing, bundle.metrics)}"
    if isinstance(predictor, Learner):
        return "; it may have to learn first, with `torchloom fit`"
    window_s = max(windows_s(predictor.needs).values(), default=0.0)
    if window_s:
        return f"; its longest window is {window_s:g} s, and samples are {tick_s:g} s apart"
    return ""


def refuse_too_many(predictor: str, span_ns: int, every_s: float, components: int) -> None:
    """Raise PluginError if more forecasts would have to be kept than memory should hold."""
    moments = span_ns / SECOND_NS / every_s
    if moments * components > _MAX_CELLS:
        raise PluginError(
            f"predictor {predictor}: need at most {_MAX_CELLS} forecasts of a component, was "
            f"{moments:.0f} moments of {components}: ask less often, every_s was {every_s:g}"
        )


def judge(
    bundle: Bundle, said: BacktestForecasts, task: Task, *, known_until_ns: int | None = None
) -> Judged:
    """Return what was said with what came of it, as it was known then (absent: at the end)."""
    manifest = bundle.manifest
    known_ns = manifest.end_ns if known_until_ns is None else known_until_ns
    events = events_to_judge(bundle, said.watched, task)
    came = outcomes(
        events,
        bundle.actions(),
        said.watched,
        said.times_ns,
        task,
        known_until_ns=known_ns,
        span=(manifest.start_ns, manifest.end_ns),
        topology=bundle.topology(),
        silences=silences(bundle, said.watched, known_until_ns=known_ns),
    )
    found = incidents(events, said.watched, task, known_until_ns=known_ns)
    return Judged(task, said.times_ns, said.every_s, said.score, came, found)


def events_to_judge(bundle: Bundle, watched: Watched, task: Task) -> tuple[Event, ...]:
    """Return the events; who failed is not at risk again before it was heard of again.

    In a detection an event whose end nobody knows is over after the repair that is assumed.
    """
    if task.kind == "detect":
        return bundle.events()
    return events_with_ends(bundle, watched, task.repair_s)


def random_scores(shape: tuple[int, ...], seed: int) -> Floats:
    """Return as many numbers that know nothing, uniform in [0, 1), the same for a seed."""
    return np.random.default_rng([seed, 0x7A6E]).random(shape)


def day_text(bundle: Bundle, ts_ns: int) -> str:
    """Return a moment as the days since the trace began, such as ``30 d``."""
    return f"{(ts_ns - bundle.manifest.start_ns) / (86_400 * SECOND_NS):.4g} d"
