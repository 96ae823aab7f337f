"""The mapping of a user's tables to a trace bundle: a TOML file for ``--map``.

A key under ``columns`` is a column of the bundle or its short name in ``SHORT``, its value the
column of the table. A table with these names needs no mapping.
"""

import zoneinfo
from pathlib import Path
from typing import Any, Literal

import msgspec

from torchloom_core.config.loading import convert, read_text, read_toml
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest

SHORT = {
    "t_event": "time",
    "t_resolved": "resolved",
    "t_avail": "available",
    "from_ns": "from",
    "until_ns": "until",
    "parents": "parent",
}
"""Column of a bundle to its short name in a table."""


class Csv(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[csv]``: the format of all CSV files."""

    delimiter: str | None = None
    """Between cells; by default the comma, ``;``, tab or ``|`` that the header has."""
    encoding: str = "utf-8"
    """By default UTF-8. A byte order mark takes precedence."""
    decimal: Literal[".", ","] = "."
    """The decimal mark of numbers."""
    empty: tuple[str, ...] = ()
    """Texts that count as empty cells, in all columns."""


class Times(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[times]``: the format of times, and the recorded span."""

    unit: Literal["iso8601", "ns", "us", "ms", "s", "days"] = "iso8601"
    """Unit of numbers; ``iso8601``, the default, reads dates."""
    zone: str = "UTC"
    """Time zone of dates without an offset, by its name in the IANA database."""
    origin: str = "1970-01-01"
    """Time at which a number is 0, as ISO 8601."""
    start: str | float | None = None
    end: str | float | None = None
    """In the same unit; by default the first and the last time in the tables."""


class Events(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[events]``."""

    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}
    """Columns that are the same in every row."""
    fatal_if: dict[str, tuple[str, ...]] = {}
    """Column of the bundle to its values in fatal events; all other events are not fatal."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[topology]``: a CSV file, one row per component; parents are separated by ``;``."""

    file: str
    columns: dict[str, str] = {}
    constants: dict[str, Any] = {}


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[telemetry]``: a CSV or Parquet file."""

    file: str
    layout: Literal["wide", "long"] = "wide"
    """One column per metric, or one row per value."""
    columns: dict[str, str] = {}
    metrics: tuple[str, ...] = ()
    """Metric columns of a wide table; by default all that have no other use."""
    load_dependent: tuple[str, ...] = ()
    """Metrics that depend on the job's load, so are invalid once the job runs elsewhere."""


class Mapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file; paths in it are relative to its folder."""

    name: str = ""
    """Name of the trace; "" for that of the written bundle."""
    csv: Csv = Csv()
    times: Times = Times()
    events: Events = Events()
    topology: Topology | None = None
    telemetry: Telemetry | None = None


def load_mapping(path: Path) -> Mapping:
    """Read a mapping from a TOML file; ConfigError, with file and line, if it is invalid."""
    text = read_text(path)
    table = read_toml(text, str(path))
    mapping = convert(table, Mapping, str(path), text=text)
    for name, part in (("topology", mapping.topology), ("telemetry", mapping.telemetry)):
        if part is not None and not part.file.isprintable():
            raise ConfigError(f"{path}: need {name}.file in one line, was {part.file!r}")
    mark = mapping.csv.delimiter
    if mark is not None and (len(mark) != 1 or mark.isalnum() or mark in '"\r\n'):
        raise ConfigError(
            f"{path}: need csv.delimiter of one character, no letter, digit or quote, was {mark!r}"
        )
    _check_encoding(mapping.csv.encoding, path)
    _check_zone(mapping.times.zone, path)
    return mapping


def _check_encoding(encoding: str, path: Path) -> None:
    try:
        "".encode(encoding)
    except (LookupError, ValueError):  # ValueError if the name has a NUL
        raise ConfigError(
            f"{path}: need csv.encoding with an encoding of Python, such as utf-8, utf-16 or "
            f"cp1252, was {encoding!r}"
        ) from None


def _check_zone(zone: str, path: Path) -> None:
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        meant = nearest(zone, zoneinfo.available_timezones())
        raise ConfigError(
            f"{path}: need times.zone from the IANA database, such as Europe/Berlin, was "
            f"{zone!r}{meant}"
        ) from None
