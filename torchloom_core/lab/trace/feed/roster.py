"""Turn the presence and faults of a trace's components into the messages of a live run.

:class:`~torchloom_core.lab.trace.feed.feed.Feed` calls it. A watched component plays a worker: it
sends a hello when it appears, ends when a fatal fault of it becomes known, comes back as its next
incarnation when the fault is resolved, and leaves when it disappears.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event, Placement
from torchloom_core.lab.trace.feed.silences import events_with_ends
from torchloom_core.lab.trace.feed.watched import Watched
from torchloom_core.wire.events import NodeFault
from torchloom_core.wire.messages import Exit, Hello

Message = NodeFault | Exit | Hello

_ORDER: dict[type[Message], int] = {NodeFault: 0, Exit: 1, Hello: 2}
_BEFORE_ALL_NS = -(2**63)
_AFTER_ALL_NS = 2**63 - 1


class _Span(NamedTuple):
    """Half open, nanoseconds; for an outage and the service before, whether its fault is shown."""

    from_ns: int
    until_ns: int
    shown: bool = False


_ALWAYS = _Span(_BEFORE_ALL_NS, _AFTER_ALL_NS)


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

    Faults known before the start come first. A message at ``ts_ns`` depends only on what was
    available then; a fault carries its ``t_event``.

    A fatal fault with an unknown end lasts ``repair_s`` at least, unless it follows the job: see
    :mod:`torchloom_core.lab.trace.feed.silences`. ``shows`` is whether an event appears as a fault;
    an outage by another event is an expected exit.
    """
    messages: list[tuple[int, Message]] = []
    outages: dict[int, list[_Span]] = {}
    events = events_with_ends(bundle, watched, repair_s)
    for event in sorted(events, key=lambda event: (event.t_avail, event.t_event)):
        rows, shown = watched.rows_of(event.component), shows(event)
        if shown:
            known_ns = max(event.t_avail, start_ns)
            messages += [(known_ns, fault) for fault in _faults(event, rows, watched)]
        if event.fatal:
            for row in rows:
                outages.setdefault(row, []).append(_outage(event, repair_s, shown=shown))
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
        incarnations = _incarnations(there.get(worker, _ALWAYS), outages.get(row, ()))
        now_or_later = (one for one in incarnations if one.until_ns > start_ns)
        for number, incarnation in enumerate(now_or_later, start=1):
            first = replace(hello, incarnation=number)
            messages += _messages(first, incarnation, ranks, row, start_ns)
    # A stable sort: messages of the same time and kind stay in the order of becoming known.
    return sorted(
        (pair for pair in messages if pair[0] <= end_ns),
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


def _outage(event: Event, repair_s: float, *, shown: bool) -> _Span:
    until_ns = event.t_resolved
    if until_ns is None:
        away_ns = 0 if event.follows == "job" else round(repair_s * SECOND_NS)
        until_ns = event.t_event + away_ns
    return _Span(event.t_avail, max(event.t_avail, until_ns), shown)


def _incarnations(presence: _Span, outages: Iterable[_Span]) -> Iterator[_Span]:
    """Yield the time in service of a component between outages, which are sorted by start."""
    from_ns = presence.from_ns
    for outage in outages:
        if outage.from_ns > presence.until_ns:
            break
        if from_ns < outage.from_ns:
            yield _Span(from_ns, outage.from_ns, outage.shown)
        from_ns = max(from_ns, outage.until_ns)
    if from_ns < presence.until_ns:
        yield _Span(from_ns, presence.until_ns)


def _messages(
    hello: Hello, incarnation: _Span, ranks: "_Ranks", row: int, start_ns: int
) -> Iterator[tuple[int, Message]]:
    from_ns, until_ns = max(incarnation.from_ns, start_ns), incarnation.until_ns
    for ts_ns, position in ranks.of(row, hello.worker, _Span(from_ns, until_ns)):
        yield ts_ns, replace(hello, **position, ts_ns=ts_ns)
    if until_ns != _AFTER_ALL_NS:
        exit_ = Exit(
            run=hello.run,
            worker=hello.worker,
            incarnation=hello.incarnation,
            status=None,
            expected=not incarnation.shown,
            ts_ns=until_ns,
        )
        yield until_ns, exit_


_POSITION = ("group", "rank", "role", "stage", "shard", "generation")
"""What a worker of a trace has of its placement; node and rack are the component's."""


class _Ranks:
    """The replica group and rank of each watched component over time."""

    def __init__(self, bundle: Bundle, watched: Watched) -> None:
        self._of_row: dict[int, list[Placement]] = {}
        placement = bundle.placement()
        self._one_job = len({place.job for place in placement}) == 1
        for place in sorted(placement, key=lambda place: (place.job, place.group, place.rank)):
            for row in watched.rows_of(place.component):
                self._of_row.setdefault(row, []).append(place)

    def of(self, row: int, alone: str, span: _Span) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ``(ts_ns, fields of the placement)`` at the start of the span and at each change.

        A component without a rank is a group of its own, named ``alone``; of several ranks on a
        component the lowest counts.
        """
        places = self._of_row.get(row, [])
        edges = {edge for place in places for edge in (place.from_ns, place.until_ns)}
        last: dict[str, Any] | None = None
        inside = {edge for edge in edges if edge is not None and edge < span.until_ns}
        for ts_ns in sorted({span.from_ns, *(edge for edge in inside if edge > span.from_ns)}):
            place = next((place for place in places if _sits(place, ts_ns)), None)
            now = {"group": alone, "rank": 0} if place is None else self._position(place)
            if now != last:
                yield ts_ns, now
            last = now

    def _position(self, place: Placement) -> dict[str, Any]:
        named = {name: getattr(place, name) for name in _POSITION}
        return named if self._one_job else named | {"group": f"{place.job}/{place.group}"}


def _sits(place: Placement, ts_ns: int) -> bool:
    return place.from_ns <= ts_ns and (place.until_ns is None or ts_ns < place.until_ns)
