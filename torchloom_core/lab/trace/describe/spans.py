"""Sets of moments as sorted spans of nanoseconds that do not overlap, half open."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """From ``start_ns``, up to but without ``end_ns``."""

    start_ns: int
    end_ns: int


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans.

    Examples
    --------
    >>> union([Span(5, 9), Span(0, 2), Span(8, 12), Span(3, 3)])
    [Span(start_ns=0, end_ns=2), Span(start_ns=5, end_ns=12)]
    """
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.start_ns < span.end_ns):
        if merged and span.start_ns <= merged[-1].end_ns:
            merged[-1] = Span(merged[-1].start_ns, max(merged[-1].end_ns, span.end_ns))
        else:
            merged.append(span)
    return merged


def without(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return the parts of ``span`` outside the holes.

    Examples
    --------
    >>> without(Span(0, 10), [Span(8, 12), Span(2, 3)])
    [Span(start_ns=0, end_ns=2), Span(start_ns=3, end_ns=8)]
    """
    left = []
    start_ns = span.start_ns
    for hole in union(holes):
        left.append(Span(start_ns, min(hole.start_ns, span.end_ns)))
        start_ns = max(start_ns, hole.end_ns)
    left.append(Span(start_ns, span.end_ns))
    return [part for part in left if part.start_ns < part.end_ns]


def common_ns(first: Sequence[Span], second: Sequence[Span]) -> int:
    """Return the length of the intersection.

    Examples
    --------
    >>> common_ns([Span(0, 4), Span(6, 9)], [Span(3, 7)])
    2
    """
    return sum(
        max(0, min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns))
        for one in first
        for other in second
    )
