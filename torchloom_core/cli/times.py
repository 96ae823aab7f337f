"""Lengths of time and moments of a trace as a person types them."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import CycloptsError, Parameter, Token, convert

from torchloom_core.errors import ConfigError

if TYPE_CHECKING:
    from torchloom_core.trace.bundle.schema import Manifest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = timedelta(seconds=1e9)

_FIRST_DAY = {4: "-01-01", 7: "-01"}
"""Characters of a year or a month to what makes it its first day."""

_LENGTH = re.compile(r"(\d+(\.\d*)?(s|m|h|d|w))+")
"""Cyclopts knows months and years as well, which are of no certain length."""


def _length(text: str) -> timedelta | None:
    """Return how long ``text`` says, or None if it says no length of at most about 30 years."""
    units = text.lower().replace("min", "m")  # to cyclopts 15M is months
    if not _LENGTH.fullmatch(units):
        return None
    try:
        length: timedelta = convert(timedelta, [units])
    except (CycloptsError, OverflowError):
        return None
    return length if length <= _LONGEST else None


def _duration(_: Any, tokens: Sequence[Token]) -> timedelta:
    (told,) = tokens
    length = _length(told.value)
    if not length:
        raise ConfigError(
            f"{told.keyword}: need a duration such as 30s, 15min or 2d, at most {_LONGEST.days}d, "
            f"was {told.value!r}"
        )
    return length


def _moment(_: Any, tokens: Sequence[Token]) -> datetime | timedelta:
    (told,) = tokens
    length = _length(told.value)
    if length is not None:
        return length
    is_long = re.fullmatch(r"\d{4}(-\d\d)?", told.value)
    try:
        moment: datetime = convert(
            datetime, [told.value + (_FIRST_DAY[len(told.value)] if is_long else "")]
        )
    except (CycloptsError, OverflowError):
        raise ConfigError(
            f"{told.keyword}: need a date such as 2024-06-30, 2024-06 or 2024, or a time since the "
            f"trace's start such as 30d, was {told.value!r}"
        ) from None
    return moment


Duration = Annotated[timedelta, Parameter(converter=_duration, allow_leading_hyphen=True)]
"""At most about 30 years."""

Moment = Annotated[datetime | timedelta, Parameter(converter=_moment, allow_leading_hyphen=True)]
"""A date, UTC unless it says otherwise, or a time since the trace's start.

Of a month or a year it is the beginning.
"""


def moment_ns(moment: datetime | timedelta, manifest: "Manifest") -> int:
    """Return when in the trace that is."""
    if isinstance(moment, timedelta):
        return manifest.start_ns + _ns(moment)
    return _ns((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH)


def _ns(length: timedelta) -> int:
    return length // timedelta(microseconds=1) * 1_000
