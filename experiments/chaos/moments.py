"""Times at which a process was down, and the failures that explains."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.chaos.record import Row

DETECT_S = 2.5
"""Within this time after a trainer's end a step may still include it: torchft's heartbeat timeout
is 1 s."""


class Span(NamedTuple):
    """Begin and end, seconds since the Unix epoch, and the cause."""

    begin: float
    end: float
    why: str = ""

    def meets(self, begin: float, end: float) -> bool:
        """Return whether the two overlap."""
        return self.begin <= end and begin <= self.end


def down(timeline: Sequence[Row], what: str) -> list[Span]:
    """Return when the Weaver or the broker could not answer: dead, starting or frozen."""
    spans: list[Span] = []
    since: float | None = None
    for row in timeline:
        mine = row.get("target", row.get("what")) == what
        if mine and row["event"] in ("strike", "end") and row.get("kind") != "freeze":
            since = row["t"] if since is None else since
        elif mine and row["event"] == "ready" and since is not None:
            spans.append(Span(since, row["t"], f"{what} was dead"))
            since = None
        elif mine and row["event"] == "strike":
            spans.append(Span(row["t"], _thawed(timeline, row), f"{what} was frozen"))
    if since is not None:
        spans.append(Span(since, math.inf, f"{what} was dead"))
    return spans


def disturbances(timeline: Sequence[Row]) -> list[Span]:
    """Return when a trainer of the quorum was killed, frozen, or ended by itself."""
    spans: list[Span] = []
    for row in timeline:
        if row["event"] == "strike" and row["target"] == "trainer" and not row["stands_by"]:
            frozen = row["kind"] == "freeze"
            end = _thawed(timeline, row) if frozen else row["t"]
            spans.append(Span(row["t"], end, "frozen" if frozen else "killed"))
        elif row["event"] == "end" and row["what"] == "trainer" and died_alone(row):
            spans.append(Span(row["t"], row["t"], "ended by itself"))
    return spans


def died_alone(end: Row) -> bool:
    """Return whether a trainer ended without a kill or a drain."""
    return not end["struck"] and not (end["drained"] and end["status"] == 0)


def overlap_s(spans: Iterable[Span], begin: float, end: float) -> float:
    """Return how much of the time from ``begin`` to ``end`` is covered by the spans."""
    covered, until = 0.0, begin
    for span in sorted(spans):
        first, last = max(span.begin, until), min(span.end, end)
        if last > first:
            covered += last - first
            until = last
    return covered


def _thawed(timeline: Sequence[Row], strike: Row) -> float:
    for row in timeline:
        later = row["t"] > strike["t"] and row.get("pid") == strike["pid"]
        if later and row["event"] == "thaw":
            return float(row["t"])
    return math.inf
