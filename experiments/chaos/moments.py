"""Times at which a process was down, and the failures that explains."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiments.chaos.record import Row

DETECT_S = 2.5
"""Within this time after a trainer's end a step may still include it: torchft's heartbeat timeout
is 1 s."""

ELECT_S = 8.0
"""Servers of a cluster elect another leader of a stream within about 6 s, and clients come back."""
LEFT_S = 30.0
"""After this time without an answer a client leaves a frozen server for another one."""
TAKEN_S = 3.0


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


def away_of_cluster(
    timeline: Sequence[Row], started_s: Sequence[tuple[float, int]], hosts: int
) -> list[Span]:
    """Return when a run with standbys could not answer, by its strikes and its take-overs.

    ``started_s`` are begin and host of each epoch, in order. A server that was struck is away until
    clients have left it and another one leads the streams; two of them take the others' majority.
    """
    spans: list[Span] = []
    servers = [
        [row for row in timeline if row.get("host") == number or row["event"] == "thaw"]
        for number in range(hosts)
    ]
    of_server = [down([_as(row, "broker") for row in rows], "broker") for rows in servers]
    for server in of_server:
        spans += [Span(s.begin, min(s.end, s.begin + LEFT_S) + ELECT_S, s.why) for s in server]
    for first, second in itertools.combinations(of_server, 2):
        both = [(max(a.begin, b.begin), min(a.end, b.end)) for a in first for b in second]
        spans += [Span(begin, end + ELECT_S, "no majority") for begin, end in both if begin < end]
    for row in timeline:
        if row["event"] != "strike" or row["target"] not in ("weaver", "host"):
            continue
        before = [one for one in started_s if one[0] <= row["t"]]
        later = [begun for begun, _ in started_s if begun > row["t"]]
        if before and before[-1][1] == row["host"]:
            ends = [*later[:1], *([_thawed(timeline, row)] if row["kind"] == "freeze" else [])]
            spans.append(Span(row["t"], min(ends, default=math.inf), "the leader was struck"))
    # One that was replaced though it lives: its loop or its server stood still for a lease.
    spans += [Span(begun - TAKEN_S, begun, "taken over") for begun, _ in started_s]
    return spans


def _as(row: Row, what: str) -> Row:
    """Return the row; the strike of a host as that of its server."""
    return {**row, "target": what} if row.get("target") == "host" else row


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
