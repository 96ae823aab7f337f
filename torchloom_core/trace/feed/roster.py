"""Who of a trace's components is there when, as the messages a live run would have brought.

:class:`~torchloom_core.trace.feed.feed.Feed` calls it. A watched component plays a worker: it says
hello when it appears, ends when a fatal fault of it is known, comes back as its next incarnation
when that is resolved, and leaves when it vanishes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from torchloom_core.clock import SECOND_NS
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import Event, Placement
from torchloom_core.trace.feed.ends import events_with_ends
from torchloom_core.trace.feed.watched import Watched
from torchloom_core.wire.events import NodeFault
from torchloom_core.wire.messages import Exit, Hello

Message = NodeFault | Exit | Hello

_ORDER: dict[type[Message], int] = {NodeFault: 0, Exit: 1, Hello: 2}
_BEFORE_ALL_NS = -(2**63)
_AFTER_ALL_NS = 2**63 - 1


class _Span(NamedTuple):
    """Half open, nanoseconds."""

    from_ns: int
    until_ns: int


_ALWAYS = _Span(_BEFORE_ALL_NS, _AFTER_ALL_NS)


class _Outage(NamedTuple):
    """Half open, nanoseconds, and whether it is told what it is by."""

    from_ns: int
    until_ns: int
    told: bool


class _Life(NamedTuple):
    """One incarnation, and whether it is told that a fault ended it."""

    from_ns: int
    until_ns: int
    failed: bool


def roster(
    bundle: Bundle,
    watched: Watched,
    *,
    start_ns: int,
    end_ns: int,
    repair_s: float,
    shows: Callable[[Event], bool] = lambda _: True,
) -> list[tuple[int, Message]]:
    """Return the hellos, faults and exits from ``start_ns`` to ``end_ns``, in time order.

    Faults that were known before the start come first. What is at ``ts_ns`` follows from what
    was available then; a fault carries its ``t_event``.

    Parameters
    ----------
    repair_s : float
        How long a component is away after a fatal fault whose end nobody knows, at the least:
        see :mod:`torchloom_core.trace.feed.ends`. A fault that follows the job keeps it away for
        no longer than is known.
    shows : callable
        Which events are told as faults; who is away by another leaves, as if it were asked to.
    """
    told: list[tuple[int, Message]] = []
    outages: dict[int, list[_Outage]] = {}
    events = events_with_ends(bundle, watched, repair_s)
    for event in sorted(events, key=lambda event: (event.t_avail, event.t_event)):
        rows, shown = watched.rows_of(event.component), shows(event)
        if shown:
            told_ns = max(event.t_avail, start_ns)
            told += [(told_ns, fault) for fault in _faults(event, rows, watched)]
        if event.fatal:
            for row in rows:
                outages.setdefault(row, []).append(_outage(event, repair_s, told=shown))
    there = _presence(bundle)
    ranks = _Ranks(bundle, watched)
    for row, worker in enumerate(watched.ids):
        hello = Hello(
            run=bundle.manifest.name,
            worker=worker,
            incarnation=0,
            group=worker,
            rank=0,
            node=watched.node[row],
            rack=watched.rack[row],
            labels=watched.labels.of[row] if watched.labels.of else {},
        )
        lives = _lives(there.get(worker, _ALWAYS), outages.get(row, ()))
        now_or_later = (life for life in lives if life.until_ns > start_ns)
        for number, life in enumerate(now_or_later, start=1):
            told += _life(replace(hello, incarnation=number), life, ranks, row, start_ns)
    # A stable sort: of what has the same time and kind, that which was known first is first.
    return sorted(
        (pair for pair in told if pair[0] <= end_ns),
        key=lambda pair: (pair[0], _ORDER[type(pair[1])]),
    )


def _presence(bundle: Bundle) -> dict[str, _Span]:
    return {
        part.id: _Span(
            _BEFORE_ALL_NS if part.from_ns is None else part.from_ns,
            _AFTER_ALL_NS if part.until_ns is None else part.until_ns,
        )
        for part in bundle.topology()
    }


def _faults(event: Event, rows: Sequence[int], watched: Watched) -> Iterator[NodeFault]:
    for row in rows:
        yield NodeFault(
            node=watched.node[row],
            kind=event.kind,
            ts_ns=event.t_event,
            id=event.id if len(rows) == 1 else f"{event.id}/{watched.ids[row]}",
            fatal=event.fatal,
        )


def _outage(event: Event, repair_s: float, *, told: bool) -> _Outage:
    until_ns = event.t_resolved
    if until_ns is None:
        away_ns = 0 if event.follows == "job" else round(repair_s * SECOND_NS)
        until_ns = event.t_event + away_ns
    return _Outage(event.t_avail, max(event.t_avail, until_ns), told)


def _lives(presence: _Span, outages: Iterable[_Outage]) -> Iterator[_Life]:
    """Yield what outages, sorted by start, leave of the time a component was there."""
    from_ns = presence.from_ns
    for outage in outages:
        if outage.from_ns > presence.until_ns:
            break
        if from_ns < outage.from_ns:
            yield _Life(from_ns, outage.from_ns, failed=outage.told)
        from_ns = max(from_ns, outage.until_ns)
    if from_ns < presence.until_ns:
        yield _Life(from_ns, presence.until_ns, failed=False)


def _life(
    hello: Hello, life: _Life, ranks: "_Ranks", row: int, start_ns: int
) -> Iterator[tuple[int, Message]]:
    from_ns = max(life.from_ns, start_ns)
    for ts_ns, group, rank in ranks.of(row, hello.worker, _Span(from_ns, life.until_ns)):
        yield ts_ns, replace(hello, group=group, rank=rank, ts_ns=ts_ns)
    if life.until_ns != _AFTER_ALL_NS:
        exit_ = Exit(
            run=hello.run,
            worker=hello.worker,
            incarnation=hello.incarnation,
            status=None,
            expected=not life.failed,
            ts_ns=life.until_ns,
        )
        yield life.until_ns, exit_


class _Ranks:
    """Which replica group each watched component was in, and when."""

    def __init__(self, bundle: Bundle, watched: Watched) -> None:
        self._of_row: dict[int, list[Placement]] = {}
        placement = bundle.placement()
        self._one_job = len({place.job for place in placement}) == 1
        for place in sorted(placement, key=lambda place: (place.job, place.group, place.rank)):
            for row in watched.rows_of(place.component):
                self._of_row.setdefault(row, []).append(place)

    def of(self, row: int, alone: str, span: _Span) -> Iterator[tuple[int, str, int]]:
        """Yield ``(ts_ns, group, rank)`` at the start of the span and at every change in it.

        A component without a rank is a group of its own, called ``alone``; of several ranks on
        it the lowest counts.
        """
        places = self._of_row.get(row, [])
        edges = {edge for place in places for edge in (place.from_ns, place.until_ns)}
        last: tuple[str, int] | None = None
        inside = {edge for edge in edges if edge is not None and edge < span.until_ns}
        for ts_ns in sorted({span.from_ns, *(edge for edge in inside if edge > span.from_ns)}):
            place = next((place for place in places if _sits(place, ts_ns)), None)
            now = (alone, 0) if place is None else (self._name(place), place.rank)
            if now != last:
                yield ts_ns, *now
            last = now

    def _name(self, place: Placement) -> str:
        return place.group if self._one_job else f"{place.job}/{place.group}"


def _sits(place: Placement, ts_ns: int) -> bool:
    return place.from_ns <= ts_ns and (place.until_ns is None or ts_ns < place.until_ns)
