"""Convert the cells of a user's table: times, numbers, truth values, column names.

Row 1 is the header, so row numbers equal the line numbers of the file.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.floor.suggest import ALL_BUT_EQUAL, closest, nearest
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.importers.faults import Faults
from torchloom_core.lab.trace.importers.mapping import SHORT, Csv, Times
from torchloom_core.lab.trace.importers.mapping import Mapping as Plan

FIRST_ROW = 2
_log = logging.getLogger(__name__)

_UNIT_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": SECOND_NS, "days": 86_400 * SECOND_NS}
_BEYOND_NS = float(2**63)

_FIRST, _LAST = (edge.tz_localize("UTC") for edge in (pd.Timestamp.min, pd.Timestamp.max))
_YEARS = "a time in the years 1678 to 2261"
_OF_TODAY = ("now", "today")
"""Texts that pandas parses as the current time; they are refused."""

_NUMBER = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
_DAY = r"\d{8}"
"""A date in ISO 8601's basic form, such as 20260104, that looks like a number."""

_EMPTY = ("", "nan", "nat", "none", "null", "na", "n/a", "#n/a", "unknown", "-", "--", "?")
"""Texts, in any case, that mean an empty time or number."""

_WITH_COMMA = r"[+-]?\d*,\d+"
_SWAPPED = str.maketrans(",.", ".,")
_OFFSET = r".*\d\s?[T ].*\d\s*(Z|[+-]\d\d(:?\d\d)?)\s*"
_NAMED_UTC = r"\s+(UTC|GMT)$"

_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "")

_RULE = {
    "iso8601": "an ISO 8601 time (or times.unit in a mapping)",
    "ns": "a number of nanoseconds",
    "us": "a number of microseconds",
    "ms": "a number of milliseconds",
    "s": "a number of seconds",
    "days": "a number of days",
}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Wrong = NDArray[np.bool_]


def rename(
    table: pd.DataFrame,
    columns: Mapping[str, str],
    known: Iterable[str],
    place: Path,
) -> pd.DataFrame:
    """Return the table with the column names of a bundle; unknown columns keep their names.

    ``columns`` maps a column of the bundle, or its short name in ``SHORT``, to that of the table.
    ConfigError if it names a column that a bundle does not have, TraceError for one that the table
    does not have.
    """
    known = sorted(known)
    long = {short: column for column, short in SHORT.items() if column in known}
    columns = {long.get(column, column): name for column, name in columns.items()}
    for column, name in columns.items():
        if column not in known:
            raise ConfigError(
                f"the mapping of {place}: a bundle has no column {column!r}{nearest(column, known)}"
            )
        if name not in table.columns:
            raise TraceError(
                f"{place}:1: need a column {name!r} for {column}, was none"
                f"{nearest(name, map(str, table.columns))}"
            )
        if column in table.columns and column not in columns.values():
            raise TraceError(
                f"{place}:1: need one column for {column}, was {name!r} (by the mapping) and "
                f"{column!r}"
            )
    names = {name: column for column, name in columns.items()}
    for column in known:
        short = SHORT.get(column)
        if column not in {*columns, *table.columns} and short in {*table.columns} - {*names}:
            names[str(short)] = column
    return table.rename(columns=names)


def warn_mistyped(table: pd.DataFrame, known: Iterable[str], place: Path) -> None:
    """Log a warning for each unknown column of the renamed table that may be a typing error."""
    absent = set(known).difference(table.columns)
    absent |= {SHORT[column] for column in absent if column in SHORT}
    for name in table.columns:
        meant = closest(str(name).lower(), absent, ALL_BUT_EQUAL)
        if name not in known and meant:
            _log.warning(
                "%s:1: column %r is stored as an extra column; did you mean %r?",
                *(place, name, meant),
            )


def need_columns(table: pd.DataFrame, columns: Iterable[str], place: Path) -> None:
    """Raise a TraceError for the first of ``columns`` that the renamed table lacks."""
    for column in columns:
        if column not in table.columns:
            named = f"{SHORT[column]!r}" if column in SHORT else f"{column!r}"
            raise TraceError(f"{place}:1: need a column {named}, or a mapping for it, was none")


def need_cells(table: pd.DataFrame, columns: Iterable[str], path: Path, faults: Faults) -> None:
    """Add a fault for each empty cell in ``columns`` of the renamed table."""
    for column in columns:
        cells = table[column]
        rule = repr(SHORT.get(column, column))
        _need(cells, (cells.isna() | (cells == "")).to_numpy(np.bool_), f"a {rule}", path, faults)


class Parsed(NamedTuple):
    """Times as ``(cells,)`` nanoseconds since the Unix epoch, and which cells are invalid.

    ``wrong`` is no time, ``far`` outside the range of 64-bit nanoseconds; ``twice`` and ``skipped``
    are without an offset in the hour that a change to or from summer time repeats or skips.
    """

    ns: Ints
    wrong: Wrong
    far: Wrong
    twice: Wrong
    skipped: Wrong

    def rules(self, times: Times) -> Iterator[tuple[Wrong, str]]:
        """Yield ``(cells,)`` where a rule is broken, and the rule."""
        yield self.wrong, _RULE[times.unit]
        yield self.far, _YEARS
        yield self.twice, f"a time with its offset: {times.zone} had this hour twice"
        yield self.skipped, f"a time that exists: {times.zone} skipped this hour"


def times_ns(cells: "pd.Series[str]", plan: Plan, path: Path, faults: Faults) -> Ints:
    """Return nanoseconds since the Unix epoch; all numbers without a unit are one fault."""
    times, numbers = plan.times, np.zeros(len(cells), dtype=np.bool_)
    if times.unit == "iso8601":
        numbers = _numbers(cells)
        _refuse_numbers(cells, numbers, path, faults)
        read = cells.astype(object).mask(numbers) if numbers.any() else cells
    else:
        read = _with_points(cells, plan.csv)
    parsed = _parsed(read, times, path)
    for broken, rule in parsed.rules(times):
        _need(cells, broken & ~numbers, rule, path, faults)
    return parsed.ns


def moment_ns(moment: str | float, times: Times, key: str) -> int:
    """Return the time of one key of a mapping; ConfigError if it is not a time."""
    parsed = _parsed(pd.Series([str(moment)]), times, key)
    for broken, rule in parsed.rules(times):
        if broken[0]:
            raise ConfigError(f"{key}: need {rule}, was {moment!r}")
    return int(parsed.ns[0])


def are_empty(cells: "pd.Series[Any]") -> "pd.Series[bool]":
    """Return where a cell is empty or has a text of ``_EMPTY``."""
    empty = cells.isna()
    if empty.all() or not pd.api.types.is_string_dtype(cells.dtype):
        return empty
    return empty | cells.str.lower().isin(_EMPTY)


def plain_cells(cells: "pd.Series[Any]") -> list[Any]:
    """Return cells as a CSV file would have them: times as ISO 8601, "" for a missing value."""
    there = cells.notna()
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        cells = cells.map(lambda cell: cell.isoformat(), na_action="ignore").astype(object)
    return (cells if there.all() else cells.astype(object).where(there, "")).tolist()


def numbers_of(cells: "pd.Series[str]", csv: Csv, path: Path, faults: Faults) -> Floats:
    """Return float64: NaN for an empty cell, 1 for true, 0 for false; other text is a fault."""
    read = pd.to_numeric(_with_points(cells, csv), errors="coerce")
    numbers: Floats = read.to_numpy(np.float64, na_value=np.nan)
    odd = np.isnan(numbers)
    if odd.any():
        odd &= ~are_empty(cells).to_numpy(np.bool_)
    if odd.any():
        numbers, texts = numbers.copy(), cells[odd].astype(str).str.lower()
        numbers[odd] = texts.map({"true": 1.0, "false": 0.0})
        rule = f"a number for {cells.name}"
        if csv.decimal == "." and texts.str.fullmatch(_WITH_COMMA).any():
            rule += ' (or decimal = "," under [csv] in a mapping)'
        _need(cells, odd & np.isnan(numbers), rule, path, faults)
    return numbers


def with_points(cells: "pd.Series[str]", csv: Csv) -> "pd.Series[str]":
    """Return the cells with decimal commas replaced by points in numbers; text is unchanged."""
    if csv.decimal == "." or not pd.api.types.is_string_dtype(cells.dtype):
        return cells
    commas = cells.str.fullmatch(_WITH_COMMA)
    return cells.where(~commas, cells.str.replace(",", "."))


def _with_points(cells: "pd.Series[str]", csv: Csv) -> "pd.Series[str]":
    """Return numeric cells with points and commas swapped, if the decimal mark is the comma."""
    if csv.decimal == "." or not pd.api.types.is_string_dtype(cells.dtype):
        return cells
    return cells.str.translate(_SWAPPED)


def truths_of(cells: "pd.Series[str]", path: Path, faults: Faults) -> NDArray[np.bool_]:
    """Return where a cell is true; a cell that is not true, false or empty is a fault."""
    texts = cells.astype(str).str.lower()
    is_true = texts.isin(_TRUE).to_numpy(np.bool_)
    is_false = (texts.isin(_FALSE) | cells.isna()).to_numpy(np.bool_)
    _need(cells, ~is_true & ~is_false, f"true or false for {cells.name}", path, faults)
    return is_true


def iso_ns(cells: "pd.Series[str]", zone: str = "UTC") -> Parsed:
    """Parse ISO 8601 times; a time without an offset is in ``zone``."""
    dates = pd.to_datetime(cells, format="ISO8601", utc=True, errors="coerce")
    if pd.api.types.is_string_dtype(cells.dtype) and (unread := dates.isna()).any():
        again = cells[unread].str.replace(_NAMED_UTC, "Z", regex=True, case=False)
        dates[unread] = pd.to_datetime(again, format="ISO8601", utc=True, errors="coerce")
    far = ((dates < _FIRST) | (dates > _LAST)).to_numpy(np.bool_)
    wrong = (dates.isna() | cells.isin(_OF_TODAY)).to_numpy(np.bool_)
    dates = dates.mask(far) if far.any() else dates
    twice, skipped = np.zeros_like(far), np.zeros_like(far)
    if zone != "UTC" and (local := _are_local(cells) & ~far & ~wrong).any():
        clock = dates[local].dt.tz_localize(None)
        exact = clock.dt.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
        # A skipped hour stays NaT also when summer time is given; a repeated hour does not.
        some = clock.dt.tz_localize(zone, ambiguous=np.ones(len(clock), bool), nonexistent="NaT")
        twice[local], skipped[local] = exact.isna() & some.notna(), some.isna()
        dates[local] = exact.dt.tz_convert("UTC")
    ns = dates.dt.as_unit("ns").to_numpy("datetime64[ns]").astype(np.int64)
    return Parsed(ns, wrong, far, twice, skipped)


def _are_local(cells: "pd.Series[Any]") -> Wrong:
    """Return which times have no offset."""
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return np.full(len(cells), cells.dt.tz is None)
    texts = cells.astype(str).str.replace(_NAMED_UTC, "Z", regex=True, case=False)
    return ~texts.str.fullmatch(_OFFSET, case=False).to_numpy(np.bool_)


def _parsed(cells: "pd.Series[str]", times: Times, place: Path | str) -> Parsed:
    if times.unit == "iso8601":
        return iso_ns(cells, times.zone)
    origin_ns, unit_ns = _origin_ns(times, place), _UNIT_NS[times.unit]
    numbers = pd.to_numeric(cells, errors="coerce")
    with np.errstate(over="ignore", invalid="ignore"):
        about_ns = np.abs(numbers.to_numpy(np.float64) * unit_ns + origin_ns)
    wrong, no = ~(about_ns < _BEYOND_NS), np.zeros(len(cells), dtype=np.bool_)
    # int64 wraps: an origin in the year 1 is out of range, a sum with days since then is not.
    origin_ns = (origin_ns + 2**63) % 2**64 - 2**63
    if pd.api.types.is_integer_dtype(numbers.dtype):
        return Parsed(numbers.to_numpy(np.int64) * unit_ns + origin_ns, wrong, no, no, no)
    # A float64 of a date has no nanosecond resolution: digits below a microsecond are noise.
    us = np.rint(np.where(wrong, 0, numbers.to_numpy(np.float64)) * (unit_ns / 1000))
    return Parsed(us.astype(np.int64) * 1000 + origin_ns, wrong, no, no, no)


def _numbers(cells: "pd.Series[str]") -> Wrong:
    """Return which cells are plain numbers, without dates in ISO 8601's basic form."""
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells.notna().to_numpy(np.bool_)
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return np.zeros(len(cells), dtype=np.bool_)
    texts = cells.astype(str)
    numbers = texts.str.fullmatch(_NUMBER) & ~texts.str.fullmatch(_DAY)
    return numbers.to_numpy(np.bool_)


def _refuse_numbers(cells: "pd.Series[str]", numbers: Wrong, path: Path, faults: Faults) -> None:
    if not numbers.any():
        return
    first = int(numbers.argmax())
    was = str(cells.iloc[first])

    def text_of(more: int) -> str:
        rows = f" (and numbers in {more} more rows)" if more else ""
        return (
            f"need {_RULE['iso8601']}, was {shown(was)}{rows}: set "
            f'unit = "s" (or "days" or "ns") under [times] in a file for --map, and origin to '
            f"the time at 0"
        )

    rows = (cells.index[numbers] + FIRST_ROW).tolist()
    faults.add_first(path, str(cells.name), rows, text_of)


def _need(cells: "pd.Series[str]", wrong: Wrong, rule: str, path: Path, faults: Faults) -> None:
    """Add a fault for each cell that is ``wrong``."""

    def text_of(row: int) -> str:
        was = cells.loc[row - FIRST_ROW]
        return (
            f"need {rule}, was {'an empty cell' if pd.isna(was) or was == '' else shown(str(was))}"
        )

    faults.add_all(path, (cells.index[wrong] + FIRST_ROW).tolist(), text_of)


def _origin_ns(times: Times, place: Path | str) -> int:
    try:
        origin = datetime.fromisoformat(times.origin)
    except ValueError:
        raise ConfigError(f"{place}: need times.origin as ISO 8601, was {times.origin!r}") from None
    origin = origin if origin.tzinfo else origin.replace(tzinfo=ZoneInfo(times.zone))
    return round(origin.timestamp()) * SECOND_NS
