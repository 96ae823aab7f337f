"""Fingerprint the events of a recording, to recognise the same data under another name.

:mod:`torchloom_core.lab.trace.bundle.recorded_values` does the same for telemetry.
"""

import hashlib
from collections.abc import Iterable

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.schema import Event

MAX_PRINTS = 256
"""Hashes of a fingerprint: the smallest, an unbiased sample of the events."""

_FEWEST = 3
"""Common hashes above which an agreement is no coincidence."""
_GRAIN_NS = 60 * SECOND_NS
"""Resolution of times: an export to a table may drop seconds."""
_BYTES = 8


def prints(events: Iterable[Event]) -> tuple[str, ...]:
    """Return sorted hashes of components and times of events, ``MAX_PRINTS`` at most.

    Ids, kinds and other columns are left out, as imports may differ in them.
    """
    return tuple(sorted(_all_prints(events))[:MAX_PRINTS])


def same_recording(first: tuple[str, ...], events: Iterable[Event], due: Iterable[Event]) -> bool:
    """Return whether events belong to the recording with the fingerprint ``first``.

    Half of ``first`` has to be among the events, or half of the events due among ``first``: one
    recording may be longer, cover part of the fleet, or have more events.

    Parameters
    ----------
    first : tuple of str
        As :func:`prints` returned it.
    events : iterable of Event
        All events of the other recording.
    due : iterable of Event
        Those of them that ``first`` would have, were the recordings the same.
    """
    last = first[-1] if len(first) == MAX_PRINTS else None
    due_here = {one for one in _all_prints(due) if last is None or one <= last}
    shared = len({*first} & _all_prints(events))
    fewer = min(len(first), len(due_here) or len(first))
    return 2 * shared >= fewer and shared >= min(_FEWEST, len(first)) > 0


def _all_prints(events: Iterable[Event]) -> set[str]:
    return {_print(event) for event in events}


def _print(event: Event) -> str:
    text = f"{event.t_event // _GRAIN_NS} {event.component}".encode()
    return hashlib.blake2b(text, digest_size=_BYTES).hexdigest()
