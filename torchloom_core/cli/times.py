"""Parse durations and moments of a trace from the command line."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import CycloptsError, Parameter, Token, convert

from torchloom_core.floor.errors import ConfigError

if TYPE_CHECKING:
    from torchloom_core.lab.trace.bundle.schema import Manifest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = timedelta(seconds=1e9)

_FIRST_DAY = {4: "-01-01", 7: "-01"}
"""Suffix that turns a year (4 characters) or a month (7) into its first day."""

_LENGTH = re.compile(r"(\d+(\.\d*)?(s|m|h|d|w))+")
"""Without months and years, which cyclopts accepts but which vary in length."""


def _length(text: str) -> timedelta | None:
    """Return the duration in ``text``, or None if it is none of at most about 30 years."""
    units = text.lower().replace("min", "m")  # to cyclopts 15M is months
    if not _LENGTH.fullmatch(units):
        return None
    try:
        length: timedelta = convert(timedelta, [units])
    except (CycloptsError, OverflowError):
        return None
    return length if length <= _LONGEST else None


def _duration(_: Any, tokens: Sequence[Token]) -> timedelta:
    (token,) = tokens
    length = _length(token.value)
    if not length:
        raise ConfigError(
            f"{token.keyword}: need a duration such as 30s, 15min or 2d, at most {_LONGEST.days}d, "
            f"was {token.value!r}"
        )
    return length


def _moment(_: Any, tokens: Sequence[Token]) -> datetime | timedelta:
    (token,) = tokens
    length = _length(token.value)
    if length is not None:
        return length
    is_long = re.fullmatch(r"\d{4}(-\d\d)?", token.value)
    try:
        moment: datetime = convert(
            datetime, [token.value + (_FIRST_DAY[len(token.value)] if is_long else "")]
        )
    except (CycloptsError, OverflowError):
        raise ConfigError(
            f"{token.keyword}: need a date such as 2024-06-30, 2024-06 or 2024, or a time since "
            f"the start of the trace such as 30d, was {token.value!r}"
        ) from None
    return moment


Duration = Annotated[timedelta, Parameter(converter=_duration, allow_leading_hyphen=True)]
"""At most about 30 years."""

Moment = Annotated[datetime | timedelta, Parameter(converter=_moment, allow_leading_hyphen=True)]
"""A date, in UTC unless it has a time zone, or a time since the start of the trace.

A month or a year stands for its first day.
"""


def moment_ns(moment: datetime | timedelta, manifest: "Manifest") -> int:
    """Return a moment of the trace, ns since the epoch."""
    if isinstance(moment, timedelta):
        return manifest.start_ns + _ns(moment)
    return _ns((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH)


def _ns(length: timedelta) -> int:
    return length // timedelta(microseconds=1) * 1_000
