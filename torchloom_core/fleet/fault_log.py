"""The faults of the last while, in the order in which they happened; the fleet state keeps it."""

import bisect

import msgspec

from torchloom_core.clock import SECOND_NS


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that was seen: an unexpected exit, a hang, an XID.

    ``fatal`` says that it ended, or held up, what ran there; an XID may be but a warning.
    """

    worker: str
    node: str
    kind: str
    ts_ns: int
    id: str
    fatal: bool = True


class FaultLog:
    """Faults by time, each id once, for ``memory_s`` seconds."""

    def __init__(self, memory_s: float) -> None:
        self._memory_ns = round(memory_s * SECOND_NS)
        self._faults: list[Fault] = []
        self._ids: set[str] = set()
        self._told: tuple[Fault, ...] | None = ()

    def add(self, fault: Fault) -> bool:
        """Remember a fault; return False for one that is known."""
        if fault.id in self._ids:
            return False
        self._ids.add(fault.id)
        bisect.insort(self._faults, fault, key=_when)
        self._told = None
        return True

    def forget_old(self, now_ns: int) -> None:
        """Drop what happened longer ago than the memory lasts."""
        old = bisect.bisect_left(self._faults, now_ns - self._memory_ns, key=_when)
        if old:
            self._ids.difference_update(fault.id for fault in self._faults[:old])
            del self._faults[:old]
            self._told = None

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is remembered, oldest first: the same tuple until something changes."""
        if self._told is None:
            self._told = tuple(self._faults)
        return self._told


def _when(fault: Fault) -> int:
    return fault.ts_ns
