"""Read external forecasts from a table, check them for leaks, and score them.

``torchloom evaluate TRACE --mode replay --scores NAME=FILE`` calls :func:`given_scores` before
the first forecast, and :func:`score_given` at the end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import LeakError, TraceError
from torchloom_core.floor.plain_text import printable
from torchloom_core.floor.suggest import nearest
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.evaluate.forecasts.alarms import Bools, Judged, flags_of, threshold_for
from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import (
    BacktestForecasts,
    day_text,
    judge,
    random_scores,
)
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.learning.forecast_score import FUTURE_FEATURE, ForecastScore
from torchloom_core.lab.learning.skill import RANDOM, with_verdict
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import Watched, watch

if TYPE_CHECKING:
    import pandas as pd

_MAX_CELLS = 100_000_000


@dataclass(frozen=True, eq=False)
class GivenScores:
    """A validated table of forecasts; all arrays are ``(rows,)``.

    ``component`` is the row of the watched component, ``line`` that in the file. A higher ``score``
    is likelier, and need not be a probability. ``alarm`` is there if the file has the column.
    ``test`` rows are scored, and the threshold is set on ``train`` rows, which ``split`` describes.
    """

    path: Path
    t_ns: Ints
    component: Ints
    line: Ints
    score: Floats
    alarm: Bools | None
    train: Bools
    test: Bools
    split: str


def _read(path: Path, watched: Watched, task: Task, until_ns: int) -> GivenScores:
    """Read a Parquet or CSV file of forecasts.

    Columns ``t`` (ns since the epoch, or ISO 8601, UTC), ``component`` and ``score``; optional are
    ``alarm`` (0 or 1), ``part`` (``train`` or ``test``) and ``t_avail``, when the forecast was
    available. Rows may come in any order. TraceError if the file cannot be read, a column is
    missing, or a row breaks a rule; LeakError (``future_feature``) if a forecast became available
    only after its time ``t``.
    """
    import pandas as pd

    from torchloom_core.lab.trace.importers.tables import UNREADABLE, reason_of

    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype={"t": str, "t_avail": str, "component": str})
    except UNREADABLE as error:
        reason = reason_of(error)
        raise TraceError(f"{path}: cannot read as Parquet or CSV: {reason:.200}") from None
    for column in ("t", "component", "score"):
        if column not in table.columns:
            similar = nearest(column, table.columns)
            raise TraceError(f"{path}: missing column {column}{similar}{_separator_hint(table)}")
    rows = _Rows(path, table)
    t_ns = rows.times("t")
    if "t_avail" in table.columns:
        rows.refuse(
            rows.times("t_avail") > t_ns,
            f"{FUTURE_FEATURE}: need t_avail <= t",
            "t_avail",
            LeakError,
        )
    component = pd.Index(watched.ids).get_indexer(pd.Index(table["component"].astype(str)))
    rows.refuse(component < 0, f"need a watched {watched.kind}", "component")
    values = pd.to_numeric(table["score"], errors="coerce").to_numpy(np.float64)
    rows.refuse(~np.isfinite(values), "need a finite score", "score")
    order = np.lexsort((component, t_ns))
    again = np.zeros(len(order), dtype=np.bool_)
    again[order[1:]] = (np.diff(t_ns[order]) == 0) & (np.diff(component[order]) == 0)
    rows.refuse(again, "need one score per component and time", "t")
    alarm = rows.choice("alarm", {"0": False, "1": True, "False": False, "True": True})
    part = rows.choice("part", {"train": False, "test": True})
    return GivenScores(
        path=path,
        t_ns=t_ns,
        component=component,
        line=rows.line,
        score=values,
        alarm=alarm,
        train=t_ns <= until_ns - task.horizon_ns if part is None else ~part,
        test=t_ns >= until_ns if part is None else part,
        split="before" if part is None else "the training rows, before",
    )


def _separator_hint(table: "pd.DataFrame") -> str:
    """Return a hint if the header seems to use another separator than a comma."""
    header = str(table.columns[0]) if len(table.columns) == 1 else ""
    if not any(mark in header for mark in ";|\t"):
        return ""
    return f"; separate cells by commas, the header is {shown(header)}"


class _Rows:
    """The rows of a file, for errors that name the first invalid line."""

    def __init__(self, path: Path, table: "pd.DataFrame") -> None:
        first = 1 if path.suffix == ".parquet" else 2
        self.line: Ints = np.arange(len(table), dtype=np.int64) + first
        self._path = path
        self._table = table
        if not len(table):
            raise TraceError(f"{path}: need at least one row, was none")

    def refuse(
        self, wrong: Bools, rule: str, column: str, error: type[TraceError | LeakError] = TraceError
    ) -> None:
        """Raise the error for the first invalid row."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            was = self._table[column].iloc[rows[0]]
            shown = printable(f"{was!s:.60}")
            raise error(f"{self._path}:{self.line[rows[0]]}: {rule}, was {shown}")

    def times(self, column: str) -> Ints:
        """Return a column of times in nanoseconds."""
        import pandas as pd

        from torchloom_core.lab.trace.importers.cells import iso_ns

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
        """Return a column of two values; None without the column."""
        if column not in self._table.columns:
            return None
        texts = self._table[column].astype(str)
        allowed = " or ".join(list(meaning)[:2])
        self.refuse(~texts.isin(list(meaning)).to_numpy(), f"need {column} {allowed}", column)
        return texts.map(meaning).to_numpy(np.bool_)


def given_scores(path: Path, bundle: Bundle, task: Task, *, until_ns: int) -> GivenScores:
    """Read a file of forecasts; score its ``test`` rows, or those from ``until_ns`` on.

    The threshold is set on the ``train`` rows, or on those at least a horizon before ``until_ns``,
    unless the file has a column ``alarm``. TraceError if the file is invalid, or has no rows for
    the threshold or for scoring; LeakError if its training rows leak into its test rows.
    """
    watched = watch(bundle)
    given = _read(path, watched, task, until_ns)
    test, train = given.test, given.train
    if given.split != "before":
        _refuse_split(given, task.horizon_ns)
    if not test.any():
        raise TraceError(f"{path}: need rows to score, was none from {moment_text(until_ns)} on")
    if given.alarm is None and not train.any():
        raise TraceError(
            f"{path}: need earlier rows to set a threshold on, or a column alarm; has neither"
        )
    for rows in (test, train) if given.alarm is None else (test,):
        moments = len(np.unique(given.t_ns[rows]))
        if moments * len(watched.ids) > _MAX_CELLS:
            raise TraceError(
                f"{path}: need the same times t for all components, was {moments} different "
                f"times for {len(watched.ids)} components"
            )
    return given


def score_given(
    name: str,
    given: GivenScores,
    bundle: Bundle,
    task: Task,
    *,
    false_alarms_per_node_day: float,
) -> ForecastScore:
    """Score external forecasts."""
    cut_ns = int(given.t_ns[given.test].min())
    judged, alarms = _judged(given, given.test, bundle, task, bundle.manifest.end_ns)
    allowed: float | UnsetType = UNSET
    if alarms is None:
        earlier, _ = _judged(given, given.train, bundle, task, cut_ns)
        allowed = false_alarms_per_node_day
        threshold = threshold_for(earlier, allowed)
        source = f"{given.split} {day_text(bundle, cut_ns)}"
        alarms = judged.alarms(threshold)
    else:
        alarmed = judged.score[alarms]
        threshold = float(alarmed.min()) if len(alarmed) else float(np.nanmax(judged.score))
        source = "given with the alarms"
    scored = score(
        judged,
        predictor=name,
        threshold=threshold,
        threshold_from=source,
        others={RANDOM: random_scores(judged.score.shape, seed=0)},
        alarms=alarms,
        allowed_per_node_day=allowed,
        flags=flags_of(judged, alarms),
    )
    return with_verdict(scored)


def _refuse_split(given: GivenScores, horizon_ns: int) -> None:
    """Raise LeakError if the test rows are not at least a horizon after the training rows.

    ``random_split`` if a component has a test row before a training row, ``machine_split`` if only
    other components do, ``no_embargo`` if the horizon of training rows overlaps the test time.
    """
    train, test = given.train, given.test
    if not train.any() or not test.any():
        return
    newest = np.full(given.component.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, given.component[train], given.t_ns[train])
    end_ns, own_ns = int(given.t_ns[train].max()), newest[given.component]
    early = np.flatnonzero(test & (given.t_ns <= own_ns))
    tested = np.flatnonzero(test)
    row = early[0] if len(early) else tested[np.argmin(given.t_ns[tested])]
    at_ns = int(given.t_ns[row])
    if len(early):
        why = (
            f"random_split: need the test rows of a component after its training rows, was one at "
            f"{moment_text(at_ns)} before one at {moment_text(int(own_ns[row]))}"
        )
    elif at_ns <= end_ns:
        why = (
            f"machine_split: need the test rows after all training rows, as one incident may hit "
            f"many components, was a test row at {moment_text(at_ns)} and training up to "
            f"{moment_text(end_ns)}"
        )
    elif at_ns - end_ns < horizon_ns:
        why = (
            f"no_embargo: need {horizon_ns / SECOND_NS:g} s, the horizon, between training and "
            f"test rows, was {(at_ns - end_ns) / SECOND_NS:g} s"
        )
    else:
        return
    raise LeakError(f"{given.path}:{given.line[row]}: {why}")


def _judged(
    given: GivenScores, rows: Bools, bundle: Bundle, task: Task, known_until_ns: int
) -> tuple[Judged, Bools | None]:
    """Return the selected rows with their outcomes, and their alarms.

    Components without a row are not scored; the others are at every time, if without a score.
    """
    watched = watch(bundle)
    times_ns, at = np.unique(given.t_ns[rows], return_inverse=True)
    shape = (len(times_ns), len(watched.ids))
    column = given.component[rows]
    values = np.full(shape, np.nan)
    values[at, column] = given.score[rows]
    every_s = float(np.median(np.diff(times_ns))) / SECOND_NS if len(times_ns) > 1 else 0.0
    forecasts = BacktestForecasts(watched, times_ns, every_s, values)
    judged = judge(bundle, forecasts, task, known_until_ns=known_until_ns)
    absent: NDArray[np.intp] = np.setdiff1d(np.arange(shape[1]), column)
    judged.outcome[:, absent] = np.nan
    if given.alarm is None:
        return judged, None
    alarms = np.zeros(shape, dtype=np.bool_)
    alarms[at, column] = given.alarm[rows]
    return judged, alarms
