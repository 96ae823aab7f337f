"""The mapping of somebody's own tables to a trace bundle, as it stands in a TOML file.

A key under ``columns`` is one of the bundle's columns, or the short name that ``SHORT`` has for
it, its value the name in the table; a table
that uses the bundle's own names, or the short ones of ``SHORT``, needs no mapping.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from torchloom_core.config.loading import convert, read_text, read_toml
from torchloom_core.errors import ConfigError

SHORT = {
    "t_event": "time",
    "t_resolved": "resolved",
    "t_avail": "available",
    "from_ns": "from",
    "until_ns": "until",
    "parents": "parent",
}
"""Column of a bundle to the short name that a table may use for it."""


class Times(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[times]``: how times are written, and the span that was watched.

    Attributes
    ----------
    unit : str
        What numbers count; ``iso8601``, the default, are dates, UTC where no offset is given.
    origin : str
        When a number is 0, as ISO 8601.
    start, end : str or float, optional
        In the same unit; absent: the first and the last time in the tables.
    """

    unit: Literal["iso8601", "ns", "us", "ms", "s", "days"] = "iso8601"
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
    return mapping
