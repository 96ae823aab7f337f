"""Faults of a view: their places, incidents, and the new ones."""

import bisect
import math
from collections.abc import Iterable, Sequence

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.events import Fault


def places_of(view: FleetView) -> list[str]:
    """Return each worker's node, or the worker itself if its node is unknown.

    Examples
    --------
    >>> from torchloom_core.plugin import places_of
    >>> from torchloom_core.testing import view_of
    >>> places_of(view_of(workers=3, node=["a", "a", ""]))
    ['a', 'a', 'w2']
    """
    return [node or worker for node, worker in zip(view.node, view.workers, strict=True)]


def incidents(faults: Iterable[Fault], incident_s: float) -> list[int]:
    """Return the start times of the incidents of one place, ns since the epoch, oldest first.

    Faults closer together than ``incident_s`` are one incident: a failed node takes all its
    workers down.

    Parameters
    ----------
    faults : iterable of Fault
        The faults of the place, oldest first.
    incident_s : float
        Seconds.

    Examples
    --------
    >>> from torchloom_core.plugin import Fault, incidents
    >>> def fault(s):
    ...     return Fault(worker="", node="a", kind="xid", ts_ns=s * 10**9, id=f"f{s}")
    >>> [began_ns // 10**9 for began_ns in incidents(map(fault, (10, 40, 900)), 60.0)]
    [10, 900]
    """
    incident_ns = incident_s * SECOND_NS
    began: list[int] = []
    latest_ns = -math.inf
    for fault in faults:
        if fault.ts_ns - latest_ns > incident_ns:
            began.append(fault.ts_ns)
        latest_ns = fault.ts_ns
    return began


def added(before: Sequence[Fault], now: Sequence[Fault]) -> list[Fault]:
    """Return the faults that are in ``now`` but not in ``before``, oldest first.

    Faults that the log has dropped since are ignored. The search stops at the oldest new fault,
    so that it is fast if only the newest faults are new.
    """
    if not now:
        return []
    forgotten = bisect.bisect_left(before, now[0].ts_ns, key=_when)
    count = len(now) - (len(before) - forgotten)
    new: list[Fault] = []
    row = len(before) - 1
    for fault in reversed(now):
        if len(new) == count:
            break
        if row >= 0 and before[row] == fault:
            row -= 1
        else:
            new.append(fault)
    return new[::-1]


def _when(fault: Fault) -> int:
    return fault.ts_ns
