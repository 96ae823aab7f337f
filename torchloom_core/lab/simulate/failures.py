"""Convert the failures of a trace bundle to hits of the fleet model."""

from typing import Literal

from torchloom_core.lab.simulate.event_queue import to_ns
from torchloom_core.lab.simulate.scenario import Hit
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Event, Follows
from torchloom_core.lab.trace.feed.watched import Watched, watch


def hits(
    bundle: Bundle,
    *,
    unknown: Literal["component", "job"],
    start_ns: int,
    end_ns: int,
    repair_s: float,
) -> list[Hit]:
    """Return the failures from ``start_ns`` to before ``end_ns``, in time order.

    An event of a rack, a switch or a power feed hits all nodes below it. Events with a common cause
    are one failure, at the time of the first of them. It hits all their nodes, which are away until
    the last event is resolved, or ``repair_s`` after one without a known end. Failures of unknown
    cause are assumed to follow ``unknown``.
    """
    watched = watch(bundle)
    fatal = {event.id: event for event in bundle.events() if event.fatal}
    together: dict[str, list[Event]] = {}
    for event in fatal.values():
        together.setdefault(_root(event, fatal), []).append(event)
    found = (_hit(events, watched, unknown, to_ns(repair_s)) for events in together.values())
    return sorted(
        (hit for hit in found if hit is not None and start_ns <= hit.ts_ns < end_ns),
        key=lambda hit: (hit.ts_ns, hit.id),
    )


def _root(event: Event, fatal: dict[str, Event]) -> str:
    """Return the root cause, which need not be a failure or be in the trace."""
    seen = {event.id}
    while event.cause and event.cause not in seen:
        if event.cause not in fatal:
            return event.cause
        event = fatal[event.cause]
        seen.add(event.id)
    return event.id


def _hit(events: list[Event], watched: Watched, unknown: Follows, repair_ns: int) -> Hit | None:
    first = min(events, key=lambda event: (event.t_event, event.id))
    follows = unknown if first.follows == "unknown" else first.follows
    rows = {row for event in events for row in watched.rows_of(event.component)}
    nodes = tuple(sorted({watched.node[row] for row in rows}))
    if not nodes:
        return None
    until_ns = max(
        event.t_event + repair_ns if event.t_resolved is None else event.t_resolved
        for event in events
    )
    return Hit(
        id=first.id,
        ts_ns=first.t_event,
        nodes=() if follows == "job" else nodes,
        follows=follows,
        repair_ns=max(0, until_ns - first.t_event),
        seen_on=nodes if follows == "job" else (),
    )
