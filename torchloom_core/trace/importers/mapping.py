"""The mapping of somebody's own tables to a trace bundle, as it stands in a TOML file.

A key under ``columns`` is one of the bundle's columns, or the short name that ``SHORT`` has for
it, its value the name in the table; a table
that uses the bundle's own names, or the short ones of ``SHORT``, needs no mapping.
"""

import zoneinfo
from pathlib import Path
from typing import Any, Literal

import msgspec

from torchloom_core.config.loading import convert, read_text, read_toml
from torchloom_core.errors import ConfigError
from torchloom_core.suggest import nearest

SHORT = {
    "t_event": "time",
    "t_resolved": "resolved",
    "t_avail": "available",
    "from_ns": "from",
    "until_ns": "until",
    "parents": "parent",
}
"""Column of a bundle to the short name that a table may use for it."""


class Csv(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[csv]``: how the CSV files are written, all of them.

    Attributes
    ----------
    delimiter : str
        What stands between cells; absent: the comma, ``;``, tab or ``|`` that the header has.
    encoding : str
        Absent: UTF-8. A byte order mark has the last word.
    decimal : "." or ","
        What stands before the decimals of numbers.
    empty : tuple of str
        Cells that are as good as empty, in all columns.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"
    decimal: Literal[".", ","] = "."
    empty: tuple[str, ...] = ()


class Times(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[times]``: how times are written, and the span that was watched.

    Attributes
    ----------
    unit : str
        What numbers count; ``iso8601``, the default, are dates.
    zone : str
        Time zone of dates without an offset, by its name in the IANA database.
    origin : str
        When a number is 0, as ISO 8601.
    start, end : str or float, optional
        In the same unit; absent: the first and the last time in the tables.
    """

    unit: Literal["iso8601", "ns", "us", "ms", "s", "days"] = "iso8601"
    zone: str = "UTC"
    origin: str = "1970-01-01"
    start: str | float | None = None
    end: str | float | None = None


class Events(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[events]``.

    Attributes
    ----------
    constants : dict of str to object
        Columns that are the same in every row.
    fatal_if : dict of str to tuple of str
        Which events are fatal: those with one of these cells in a column, as it is called in a
        bundle; the others are not.
    """

    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}
    fatal_if: dict[str, tuple[str, ...]] = {}


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[topology]``: a CSV file, a row a component; its parents are separated by ``;``."""

    file: str
    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[telemetry]``: a CSV or Parquet file.

    Attributes
    ----------
    layout : "wide" or "long"
        A column a metric, or a row a value.
    metrics : tuple of str
        Which columns of a wide table are metrics; absent: all that are nothing else.
    load_dependent : tuple of str
        Metrics that are of no use once the job sits elsewhere.
    """

    file: str
    layout: Literal["wide", "long"] = "wide"
    columns: dict[str, str] = {}
    metrics: tuple[str, ...] = ()
    load_dependent: tuple[str, ...] = ()


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of the file; files that it names lie relative to its ``folder``.

    Attributes
    ----------
    name : str
        What the trace is called; "": as the bundle that is written.
    """

    name: str = ""
    csv: Csv = Csv()
    times: Times = Times()
    events: Events = Events()
    topology: Topology | None = None
    telemetry: Telemetry | None = None


def load_mapping(path: Path) -> Mapping:
    """Return the mapping in a TOML file; ConfigError if it is wrong, with file and line."""
    text = read_text(path)
    table = read_toml(text, str(path))
    mapping = convert(table, Mapping, str(path), text=text)
    for name, part in (("topology", mapping.topology), ("telemetry", mapping.telemetry)):
        if part is not None and not part.file.isprintable():
            raise ConfigError(f"{path}: need {name}.file in one line, was {part.file!r}")
    mark = mapping.csv.delimiter
    if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in '"\r\n'):
        raise ConfigError(
            f"{path}: need csv.delimiter of one character that is no letter, digit or quote, was "
            f"{mark!r}"
        )
    _check_encoding(mapping.csv.encoding, path)
    _check_zone(mapping.times.zone, path)
    return mapping


def _check_encoding(encoding: str, path: Path) -> None:
    try:
        "".encode(encoding)
    except (LookupError, ValueError):  # of a name that holds a NUL
        raise ConfigError(
            f"{path}: need csv.encoding of a name that Python knows, such as utf-8, utf-16 or "
            f"cp1252, was {encoding!r}"
        ) from None


def _check_zone(zone: str, path: Path) -> None:
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        meant = nearest(zone, zoneinfo.available_timezones())
        raise ConfigError(
            f"{path}: need times.zone of the IANA database, such as Europe/Berlin, was "
            f"{zone!r}{meant}"
        ) from None
