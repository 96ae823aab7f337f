"""Forecasts that were made elsewhere: read from a table, searched for leaks, scored like any.

``torchloom evaluate TRACE --mode replay --scores NAME=FILE`` calls :func:`given_scores` before
anything is forecast, and :func:`score_given` at the end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.errors import LeakError, TraceError
from torchloom_core.evaluate.forecasts.alarms import Bools, Judged, threshold_for
from torchloom_core.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    day_text,
    judge,
    random_scores,
)
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.forecasts.leaks import FUTURE_FEATURE, Part, flags_of, refuse_split
from torchloom_core.evaluate.forecasts.scores import score
from torchloom_core.learning.forecast_score import ForecastScore
from torchloom_core.learning.skill import with_verdict
from torchloom_core.plain_text import printable
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.plugin.foreign import shown
from torchloom_core.suggest import nearest
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import Watched, watch

if TYPE_CHECKING:
    import pandas as pd

_MAX_CELLS = 100_000_000


@dataclass(frozen=True, eq=False)
class GivenScores:
    """A table of forecasts, checked row by row.

    Attributes
    ----------
    t_ns, component, line : (rows,) int64
        When, which watched row, and where in the file.
    score : (rows,) float64
        The higher, the likelier; need not be a probability.
    alarm : (rows,) bool, optional
        Where it alarmed, if the file says.
    test : (rows,) bool, optional
        Which rows are to be scored, if the file says.
    """

    path: Path
    t_ns: Ints
    component: Ints
    line: Ints
    score: Floats
    alarm: Bools | None
    test: Bools | None


@dataclass(frozen=True, eq=False)
class DividedScores:
    """Given forecasts, and which of their rows are for what.

    Attributes
    ----------
    train, test : (rows,) bool
        Where the threshold is set, and what is scored.
    split : str
        What the threshold is set on, in words.
    """

    given: GivenScores
    train: Bools
    test: Bools
    split: str


def read_given(path: Path, watched: Watched) -> GivenScores:
    """Read a Parquet or CSV file of forecasts.

    Columns ``t`` (ns since the epoch, or ISO 8601, UTC), ``component`` and ``score``; optional
    are ``alarm`` (0 or 1), ``part`` (``train`` or ``test``) and ``t_avail``, when the forecast
    could be made. Rows may come in any order.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, or a row breaks a rule.
    LeakError
        ``future_feature``, if a forecast could be made only after the moment it is for.
    """
    import pandas as pd

    from torchloom_core.trace.importers.tables import UNREADABLE, reason_of

    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype={"t": str, "t_avail": str, "component": str})
    except UNREADABLE as error:
        reason = reason_of(error)
        raise TraceError(f"{path}: need a Parquet or CSV file of scores: {reason:.200}") from None
    for column in ("t", "component", "score"):
        if column not in table.columns:
            meant = nearest(column, table.columns)
            raise TraceError(f"{path}: need a column {column}{meant}{_uncut(table)}")
    rows = _Rows(path, table)
    t_ns = rows.times("t")
    if "t_avail" in table.columns:
        rows.refuse(
            rows.times("t_avail") > t_ns,
            f"{FUTURE_FEATURE}: need t_avail <= t, a forecast made when it is for",
            "t_avail",
            LeakError,
        )
    component = pd.Index(watched.ids).get_indexer(pd.Index(table["component"].astype(str)))
    rows.refuse(component < 0, f"need a component of the {watched.kind}s watched", "component")
    values = pd.to_numeric(table["score"], errors="coerce").to_numpy(np.float64)
    rows.refuse(~np.isfinite(values), "need a finite score", "score")
    order = np.lexsort((component, t_ns))
    again = np.zeros(len(order), dtype=np.bool_)
    again[order[1:]] = (np.diff(t_ns[order]) == 0) & (np.diff(component[order]) == 0)
    rows.refuse(again, "need one score a component and moment", "t")
    return GivenScores(
        path=path,
        t_ns=t_ns,
        component=component,
        line=rows.line,
        score=values,
        alarm=rows.choice("alarm", {"0": False, "1": True, "False": False, "True": True}),
        test=rows.choice("part", {"train": False, "test": True}),
    )


def _uncut(table: "pd.DataFrame") -> str:
    """Return that the header is one cell, where it looks as if it should be several."""
    header = str(table.columns[0]) if len(table.columns) == 1 else ""
    if not any(mark in header for mark in ";|\t"):
        return ""
    return f"; need commas between cells, was {shown(header)}"


class _Rows:
    """The rows of a file, to name the first that breaks a rule."""

    def __init__(self, path: Path, table: "pd.DataFrame") -> None:
        first = 1 if path.suffix == ".parquet" else 2
        self.line: Ints = np.arange(len(table), dtype=np.int64) + first
        self._path = path
        self._table = table
        if not len(table):
            raise TraceError(f"{path}: need a row, was none")

    def refuse(
        self, wrong: Bools, rule: str, column: str, error: type[TraceError | LeakError] = TraceError
    ) -> None:
        """Raise the error for the first row that is wrong."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            was = self._table[column].iloc[rows[0]]
            shown = printable(f"{was!s:.60}")
            raise error(f"{self._path}:{self.line[rows[0]]}: {rule}, was {shown}")

    def times(self, column: str) -> Ints:
        """Return a column of times in nanoseconds."""
        import pandas as pd

        from torchloom_core.trace.importers.cells import iso_ns

        values, rule = self._table[column], "need ns since the epoch or ISO 8601"
        if pd.api.types.is_integer_dtype(values):
            return np.asarray(values, dtype=np.int64)
        whole = values.astype(str).str.fullmatch(r"-?\d+").to_numpy(np.bool_)
        if whole.any():
            odd = whole if 2 * np.count_nonzero(whole) < len(whole) else ~whole
            self.refuse(odd, f"{rule}, as in most rows", column)
            beyond = [not -(2**63) <= int(value) < 2**63 for value in values]
            self.refuse(np.array(beyond), rule, column)
            return np.asarray(values.astype("int64"), dtype=np.int64)
        parsed = iso_ns(values)
        self.refuse(parsed.wrong | parsed.far, rule, column)
        return parsed.ns

    def choice(self, column: str, meaning: dict[str, bool]) -> Bools | None:
        """Return a column that has one of two values; None without the column."""
        if column not in self._table.columns:
            return None
        texts = self._table[column].astype(str)
        allowed = " or ".join(list(meaning)[:2])
        self.refuse(~texts.isin(list(meaning)).to_numpy(), f"need {column} {allowed}", column)
        return texts.map(meaning).to_numpy(np.bool_)


def given_scores(path: Path, bundle: Bundle, task: Task, *, until_ns: int) -> DividedScores:
    """Read a file of forecasts, to be scored on its rows ``test``, or those from ``until_ns`` on.

    The threshold is set on the ``train`` rows, or on those that lie a horizon before
    ``until_ns``, unless the file says where it alarmed.

    Raises
    ------
    TraceError
        If the file is no table of scores, or has no rows to set a threshold on or to score.
    LeakError
        If its parts leak; the message names how.
    """
    watched = watch(bundle)
    given = read_given(path, watched)
    test = given.t_ns >= until_ns
    train = given.t_ns <= until_ns - task.horizon_ns
    split = "before"
    if given.test is not None:
        test, train = given.test, ~given.test
        split = "the training rows, before"
        refuse_split(str(path), _part(given, train), _part(given, test), task.horizon_ns)
    if not test.any():
        raise TraceError(f"{path}: need a row to score, was none from {moment_text(until_ns)} on")
    if given.alarm is None and not train.any():
        raise TraceError(
            f"{path}: need earlier rows to set a threshold on, or a column alarm, was neither"
        )
    for rows in (test, train) if given.alarm is None else (test,):
        moments = len(np.unique(given.t_ns[rows]))
        if moments * len(watched.ids) > _MAX_CELLS:
            raise TraceError(
                f"{path}: need the same moments for all components, was {moments} moments "
                f"for {len(watched.ids)}"
            )
    return DividedScores(given, train, test, split)


def score_given(
    name: str,
    divided: DividedScores,
    bundle: Bundle,
    task: Task,
    *,
    false_alarms_per_node_day: float,
    seed: int = 0,
) -> ForecastScore:
    """Score given forecasts as they were divided."""
    given, test, train = divided.given, divided.test, divided.train
    cut_ns = int(given.t_ns[test].min())
    judged, alarms = _judged(given, test, bundle, task, bundle.manifest.end_ns)
    allowed: float | UnsetType = UNSET
    if alarms is None:
        earlier, _ = _judged(given, train, bundle, task, cut_ns)
        allowed = false_alarms_per_node_day
        threshold = threshold_for(earlier, allowed)
        source = f"{divided.split} {day_text(bundle, cut_ns)}"
        alarms = judged.alarms(threshold)
    else:
        said = judged.score[alarms]
        threshold = float(said.min()) if len(said) else float(np.nanmax(judged.score))
        source = "given with the alarms"
    noise = random_scores(judged.score.shape, seed)
    scored = score(
        judged,
        predictor=name,
        threshold=threshold,
        threshold_from=source,
        others={"random": noise},
        alarms=alarms,
        allowed_per_node_day=allowed,
        flags=flags_of(judged, alarms),
    )
    return with_verdict(scored)


def _part(given: GivenScores, wanted: Bools) -> Part:
    return Part(given.t_ns[wanted], given.component[wanted], given.line[wanted])


def _judged(
    given: GivenScores, wanted: Bools, bundle: Bundle, task: Task, known_until_ns: int
) -> tuple[Judged, Bools | None]:
    """Return the wanted rows as a table, judged, and where they alarmed.

    Components without a row are not judged; others are at every moment, and have no score where
    there is no row.
    """
    watched = watch(bundle)
    times_ns, at = np.unique(given.t_ns[wanted], return_inverse=True)
    shape = (len(times_ns), len(watched.ids))
    column = given.component[wanted]
    values = np.full(shape, np.nan)
    values[at, column] = given.score[wanted]
    every_s = float(np.median(np.diff(times_ns))) / SECOND_NS if len(times_ns) > 1 else 0.0
    said = BacktestForecasts(watched, times_ns, every_s, values)
    judged = judge(bundle, said, task, known_until_ns=known_until_ns)
    absent: NDArray[np.intp] = np.setdiff1d(np.arange(shape[1]), column)
    judged.outcome[:, absent] = np.nan
    if given.alarm is None:
        return judged, None
    alarms = np.zeros(shape, dtype=np.bool_)
    alarms[at, column] = given.alarm[wanted]
    return judged, alarms
