"""Limit the span of a bundle to years in which any difference of two times fits in an int64."""

from datetime import UTC, datetime

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError

_FIRST, _LAST = 1824, 2115
_FIRST_NS, _BEYOND_NS = (
    round(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * SECOND_NS for year in (_FIRST, _LAST + 1)
)


def refuse_far(place: object, start_ns: int, end_ns: int) -> None:
    """Raise TraceError, which begins with ``place``, if a span is outside these years."""
    if start_ns < _FIRST_NS or end_ns >= _BEYOND_NS:
        raise TraceError(
            f"{place}: need a span in the years {_FIRST} to {_LAST}, was {moment_text(start_ns)} "
            f"to {moment_text(end_ns)}"
        )
