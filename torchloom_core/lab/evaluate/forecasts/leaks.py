"""Detect leaks in forecasts and traces.

A certain leak raises :class:`LeakError`; a suspicion is a flag in ``ForecastScore.flags``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import LeakError
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.alarms import Bools, Judged, due_moments
from torchloom_core.lab.evaluate.forecasts.altered_future import OtherFuture
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import BacktestForecasts
from torchloom_core.lab.learning.forecast_score import (
    POINT_ADJUSTED,
    SUSPICIOUS_FEATURE,
    SUSPICIOUS_SCORE,
    TEST_TUNED_THRESHOLD,
    Interval,
)
from torchloom_core.lab.learning.ranking import Ranking, precision_and_recall
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import ACTIONS, EVENTS

FUTURE_FEATURE = "future_feature"
RANDOM_SPLIT = "random_split"
MACHINE_SPLIT = "machine_split"
NO_EMBARGO = "no_embargo"

_TOO_GOOD = 0.95
"""An AUPRC above it suggests a leak; docs/fitting.md gives the reason."""

_MAX_PREVALENCE = 0.5
"""Above it, even a random score is near the limit."""

_MIN_FAILURES = 10
_MIN_LEVELS = 50
_MIN_COVERED, _MIN_MOMENTS, _EXACT_SHARE = 3, 3, 0.5


def refuse_future(
    place: str,
    forecasts: BacktestForecasts,
    bundle: Bundle,
    repeat: Callable[[Bundle, int], BacktestForecasts],
    *,
    after_ns: int,
) -> None:
    """Refuse forecasts that change if only later data of the trace is altered.

    Parameters
    ----------
    place : str
        The predictor, for the message.
    forecasts : BacktestForecasts
        The forecasts for the bundle.
    repeat : callable
        Repeats the forecasts for a bundle, up to a time.
    after_ns : int
        Data after it is altered.

    Raises
    ------
    LeakError
        ``future_feature``, if a forecast at or before ``after_ns`` is not identical.
    """
    was = forecasts.between(bundle.manifest.start_ns, after_ns)
    now = repeat(OtherFuture(bundle, after_ns), after_ns)
    where = "the forecast times"
    if np.array_equal(was.times_ns, now.times_ns):
        differs = (was.score != now.score) & ~(np.isnan(was.score) & np.isnan(now.score))
        if not differs.any():
            return
        time, row = np.argwhere(differs)[0]
        where = f"the forecast for {was.watched.ids[row]} at {moment_text(int(was.times_ns[time]))}"
    raise LeakError(
        f"{place}: {FUTURE_FEATURE}: need forecasts up to {moment_text(after_ns)} that do not "
        f"depend on later data, but {where} changed: it reads the future, or keeps state outside "
        f"the instance"
    )


def refuse_early_availability(bundle: Bundle) -> None:
    """Refuse a trace with a row that is available before its event.

    Raises
    ------
    LeakError
        ``future_feature``.
    """
    for file, rows in ((EVENTS, bundle.events()), (ACTIONS, bundle.actions())):
        for row in rows:
            if row.t_avail < row.t_event:
                raise LeakError(
                    f"{bundle.path / file}: {FUTURE_FEATURE}: need t_avail >= t_event "
                    f"{moment_text(row.t_event)} of {row.id!r}, was {moment_text(row.t_avail)}"
                )


def suspicious_features(values: Floats, failed: Bools, names: Sequence[str]) -> tuple[str, ...]:
    """Return a flag for each column that alone separates the failures suspiciously well.

    Parameters
    ----------
    values : (samples, features) float64
        NaN where missing.
    failed : (samples,) bool
    """
    if failed.sum() < _MIN_FAILURES or failed.mean() > _MAX_PREVALENCE:
        return ()
    flags = []
    for column, name in zip(values.T, names, strict=True):
        missing = np.isnan(column)
        ranks = (
            np.where(missing, -np.inf, column),
            np.where(missing, -np.inf, -column),
            missing.astype(np.float64),
        )
        if max(Ranking.of(rank, failed).average_precision for rank in ranks) >= _TOO_GOOD:
            flags.append(f"{SUSPICIOUS_FEATURE}: {name}")
    return tuple(flags)


def suspicious_score(auprc: Interval, prevalence: float) -> tuple[str, ...]:
    """Return a flag if the AUPRC is suspiciously high.

    The lower end of the interval counts, or the value where there is no interval.
    """
    least = auprc.value if auprc.low is None else auprc.low
    if least < _TOO_GOOD or prevalence > _MAX_PREVALENCE:
        return ()
    why = f"AUPRC {auprc.value:.3g} is suspiciously high; look for a leak"
    return (f"{SUSPICIOUS_SCORE}: {why}",)


@dataclass(frozen=True, eq=False)
class Part:
    """The training rows or the test rows of a table.

    Attributes
    ----------
    t_ns, component : (rows,) int64
        Time and component.
    line : (rows,) int64
        Line in the file.
    """

    t_ns: Ints
    component: Ints
    line: Ints


def refuse_split(place: str, train: Part, test: Part, horizon_ns: int) -> None:
    """Refuse a table whose test rows are not at least a horizon after its training rows.

    Raises
    ------
    LeakError
        ``random_split`` if a component has a test row before a training row, ``machine_split`` if
        only other components do, ``no_embargo`` if the horizon of training rows overlaps the
        test time.
    """
    if not len(train.t_ns) or not len(test.t_ns):
        return
    size = int(max(train.component.max(), test.component.max())) + 1
    newest = np.full(size, np.iinfo(np.int64).min)
    np.maximum.at(newest, train.component, train.t_ns)
    early = np.flatnonzero(test.t_ns <= newest[test.component])
    end_ns = int(train.t_ns.max())
    first = int(np.argmin(test.t_ns))
    if len(early):
        raise LeakError(
            f"{place}:{test.line[early[0]]}: {RANDOM_SPLIT}: need the test rows of a component "
            f"after its training rows, was one at "
            f"{moment_text(int(test.t_ns[early[0]]))} before one at "
            f"{moment_text(int(newest[test.component[early[0]]]))}"
        )
    if test.t_ns[first] <= end_ns:
        raise LeakError(
            f"{place}:{test.line[first]}: {MACHINE_SPLIT}: need the test rows after all training "
            f"rows, as one incident may hit many components, was a test row at "
            f"{moment_text(int(test.t_ns[first]))} and training up to {moment_text(end_ns)}"
        )
    if test.t_ns[first] - end_ns < horizon_ns:
        raise LeakError(
            f"{place}:{test.line[first]}: {NO_EMBARGO}: need {horizon_ns / SECOND_NS:g} s, the "
            f"horizon, between training and test rows, was "
            f"{(test.t_ns[first] - end_ns) / SECOND_NS:g} s"
        )


def refuse_trained(place: str, fitted_until_ns: int, scored_from_ns: int) -> None:
    """Refuse to score a model on the time of its training and threshold.

    Raises
    ------
    LeakError
        ``test_tuned_threshold``.
    """
    if scored_from_ns < fitted_until_ns:
        raise LeakError(
            f"{place}: {TEST_TUNED_THRESHOLD}: need scored time from "
            f"{moment_text(fitted_until_ns)} on, the end of its training, was "
            f"{moment_text(scored_from_ns)}"
        )


def flags_of(judged: Judged, alarms: Bools) -> tuple[str, ...]:
    """Return the flags of external alarms."""
    tuned = (TEST_TUNED_THRESHOLD,) * is_tuned(judged, alarms)
    return tuned + (POINT_ADJUSTED,) * is_point_adjusted(judged, alarms)


def is_tuned(judged: Judged, alarms: Bools) -> bool:
    """Return whether the alarms use exactly the threshold that is best on the scored samples.

    The best F1 is computed over samples, and with point adjustment, as both are usual.
    """
    valid = ~np.isnan(judged.outcome) & ~np.isnan(judged.score)
    positive, alarm = judged.outcome[valid] == 1.0, alarms[valid]
    if not alarm.any() or alarm.all() or not positive.any():
        return False
    adjusted = judged.score.copy()
    for due, row in zip(due_moments(judged), judged.incidents.row, strict=True):
        adjusted[due, row] = np.fmax.reduce(judged.score[due, row], initial=-np.inf)
    scores = judged.score[valid]
    highest_quiet, lowest_alarm = scores[~alarm].max(), scores[alarm].min()
    if len(np.unique(scores)) < _MIN_LEVELS:
        return False
    return any(
        highest_quiet < _best_threshold(positive, ranked) <= lowest_alarm
        for ranked in (scores, adjusted[valid])
    )


def _best_threshold(positive: Bools, score: Floats) -> float:
    precision, recall, threshold = precision_and_recall(score, positive)
    both = np.maximum(precision + recall, np.finfo(np.float64).tiny)
    best: Floats = precision * recall / both
    return float(threshold[np.argmax(best)])


def is_point_adjusted(judged: Judged, alarms: Bools) -> bool:
    """Return whether alarms cover every incident that they touch, mostly exactly.

    Honest alarms do not know the bounds of a label. Alarms that match both bounds in half of all
    cases, and never end within an incident, were made from the labels.
    """
    covered = exact = 0
    for due, row in zip(due_moments(judged), judged.incidents.row, strict=True):
        alarm = alarms[due, row]
        if len(alarm) < _MIN_MOMENTS or not alarm.any():
            continue
        if not alarm.all():
            return False
        covered += 1
        edges = [i for i in (due[0] - 1, due[-1] + 1) if 0 <= i < len(alarms)]
        exact += not alarms[edges, row].any()
    return covered >= _MIN_COVERED and exact >= _EXACT_SHARE * covered
