"""What happened in a recording, so that the same data are known again under another name.

Its telemetry is known again by :mod:`torchloom_core.trace.bundle.recorded_values`.
"""

import hashlib
from collections.abc import Iterable

from torchloom_core.clock import SECOND_NS
from torchloom_core.trace.bundle.schema import Event

KEPT = 256
"""Prints that tell a recording; of more events those with the smallest are kept, a fair sample."""

_FEWEST = 3
"""Prints that two recordings have in common by no chance."""
_GRAIN_NS = 60 * SECOND_NS
"""Seconds and what is finer may get lost on the way through a table."""
_BYTES = 8


def prints(events: Iterable[Event]) -> tuple[str, ...]:
    """Return what tells again which components had events and when, sorted, ``KEPT`` at most.

    Ids, kinds and whatever else an import makes of an event are left out.
    """
    return tuple(sorted(_all_prints(events))[:KEPT])


def same_recording(known: tuple[str, ...], events: Iterable[Event], due: Iterable[Event]) -> bool:
    """Say whether events are of a recording of which the prints are known.

    Most of those that are known have to be among them, or most of those that are due among the
    known: then it is longer, or a part of it, or somebody noted more.

    Parameters
    ----------
    known : tuple of str
        As :func:`prints` returned them.
    events : iterable of Event
        All that the other recording has.
    due : iterable of Event
        Those of them that would have been known, had it been the same.
    """
    last = known[-1] if len(known) == KEPT else None
    due_here = {one for one in _all_prints(due) if last is None or one <= last}
    shared = len({*known} & _all_prints(events))
    fewer = min(len(known), len(due_here) or len(known))
    return 2 * shared >= fewer and shared >= min(_FEWEST, len(known)) > 0


def _all_prints(events: Iterable[Event]) -> set[str]:
    return {_print(event) for event in events}


def _print(event: Event) -> str:
    told = f"{event.t_event // _GRAIN_NS} {event.component}".encode()
    return hashlib.blake2b(told, digest_size=_BYTES).hexdigest()
