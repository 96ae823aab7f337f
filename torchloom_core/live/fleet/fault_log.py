"""The recent faults, in time order; part of the fleet state."""

import bisect
from collections import Counter

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.interface.faults import _when
from torchloom_core.wire.events import Fault

MAX_FAULTS = 1000
"""Faults that are stored for a restarted Weaver."""

MOST_KNOWN = 50_000
"""Faults that are known at most: some 50 MB. Beyond it the oldest are forgotten."""


class FaultLog:
    """Faults by time, each id once, for ``memory_s`` seconds.

    The returned tuples stay the same objects until a fault is added, those of a place until a
    fault is added there.

    Attributes
    ----------
    table : PersistentTable of Fault
        The newest :data:`MAX_FAULTS`, by a number each.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_ns = round(memory_s * SECOND_NS)
        self._faults: list[Fault] = []
        self._ids: set[str] = set()
        self._of: dict[str, list[Fault]] = {}
        self._tuple_of: dict[str, tuple[Fault, ...]] = {}
        # A dict, as the order of a set differs between processes.
        self._changed: dict[str, None] = {}
        self._tuple: tuple[Fault, ...] | None = ()
        self._numbered = 0
        self._key_of: dict[str, str] = {}
        self.table: PersistentTable[Fault] = PersistentTable("fault")

    def add(self, fault: Fault) -> bool:
        """Add a fault; return False if its id is known already."""
        if fault.id in self._ids:
            return False
        self._ids.add(fault.id)
        bisect.insort(self._faults, fault, key=_when)
        bisect.insort(self._of.setdefault(fault.place, []), fault, key=_when)
        self._changed[fault.place] = None
        self._tuple = None
        self._store(fault)
        return True

    def _store(self, fault: Fault) -> None:
        if len(self._faults) > MAX_FAULTS and fault.ts_ns < self._faults[-MAX_FAULTS].ts_ns:
            return
        self._numbered += 1
        key = self._key_of[fault.id] = str(self._numbered)
        self.table[key] = fault
        if len(self.table) > MAX_FAULTS:
            oldest = self._faults[-MAX_FAULTS - 1]
            if oldest.id not in self._key_of:
                oldest = min(self.table.values(), key=_when)
            self._drop(oldest)

    def _drop(self, fault: Fault) -> None:
        key = self._key_of.pop(fault.id, None)
        if key is not None:
            del self.table[key]

    def forget_old(self, now_ns: int) -> None:
        """Drop faults older than ``memory_s``, and the oldest of too many."""
        old = bisect.bisect_left(self._faults, now_ns - self._memory_ns, key=_when)
        old = max(old, len(self._faults) - MOST_KNOWN)
        if not old:
            return
        for fault in self._faults[:old]:
            self._ids.remove(fault.id)
            self._drop(fault)
        for place, count in Counter(fault.place for fault in self._faults[:old]).items():
            del self._of[place][:count]
            self._changed[place] = None
        del self._faults[:old]
        self._tuple = None

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, oldest first."""
        if self._tuple is None:
            self._tuple = tuple(self._faults)
        return self._tuple

    @property
    def faults_of(self) -> dict[str, tuple[Fault, ...]]:
        """The same by place, in a new dict; places without faults are not in it."""
        for place in self._changed:
            there = self._of[place]
            if there:
                self._tuple_of[place] = tuple(there)
            else:
                del self._of[place]
                self._tuple_of.pop(place, None)
        self._changed.clear()
        return self._tuple_of.copy()
