"""The faults of the last while, in the order in which they happened; the fleet state keeps it."""

import bisect
from collections import Counter

from torchloom_core.clock import SECOND_NS
from torchloom_core.persistent_table import PersistentTable
from torchloom_core.plugin.faults import _when
from torchloom_core.wire.events import Fault

FAULTS_KEPT = 1000
"""How many faults outlive the process."""


def fault_of_worker(worker: str, node: str, kind: str, ts_ns: int, suffix: str) -> Fault:
    """Return what a worker's exit or note tells of; what is only noted as a fault is a warning."""
    return Fault(
        worker=worker,
        node=node,
        kind=kind,
        ts_ns=ts_ns,
        id=f"{worker}/{suffix}",
        fatal=kind != "fault",
    )


class FaultLog:
    """Faults by time, each id once, for ``memory_s`` seconds.

    What it tells is the same tuple until something happens; what it tells of a place, until
    something happens there.

    Attributes
    ----------
    table : PersistentTable of Fault
        The newest :data:`FAULTS_KEPT`, by a number each.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_ns = round(memory_s * SECOND_NS)
        self._faults: list[Fault] = []
        self._ids: set[str] = set()
        self._of: dict[str, list[Fault]] = {}
        self._told_of: dict[str, tuple[Fault, ...]] = {}
        # In the order told, which is the same in every process.
        self._changed: dict[str, None] = {}
        self._told: tuple[Fault, ...] | None = ()
        self._numbered = 0
        self._key_of: dict[str, str] = {}
        self.table: PersistentTable[Fault] = PersistentTable("fault")

    def add(self, fault: Fault) -> bool:
        """Remember a fault; return False for one that is known."""
        if fault.id in self._ids:
            return False
        self._ids.add(fault.id)
        bisect.insort(self._faults, fault, key=_when)
        bisect.insort(self._of.setdefault(fault.place, []), fault, key=_when)
        self._changed[fault.place] = None
        self._told = None
        self._keep(fault)
        return True

    def _keep(self, fault: Fault) -> None:
        if len(self._faults) > FAULTS_KEPT and fault.ts_ns < self._faults[-FAULTS_KEPT].ts_ns:
            return
        self._numbered += 1
        key = self._key_of[fault.id] = str(self._numbered)
        self.table[key] = fault
        if len(self.table) > FAULTS_KEPT:
            oldest = self._faults[-FAULTS_KEPT - 1]
            if oldest.id not in self._key_of:
                oldest = min(self.table.values(), key=_when)
            self._let_go(oldest)

    def _let_go(self, fault: Fault) -> None:
        key = self._key_of.pop(fault.id, None)
        if key is not None:
            del self.table[key]

    def forget_old(self, now_ns: int) -> None:
        """Drop what happened longer ago than the memory lasts."""
        old = bisect.bisect_left(self._faults, now_ns - self._memory_ns, key=_when)
        if not old:
            return
        for fault in self._faults[:old]:
            self._ids.remove(fault.id)
            self._let_go(fault)
        for place, count in Counter(fault.place for fault in self._faults[:old]).items():
            del self._of[place][:count]
            self._changed[place] = None
        del self._faults[:old]
        self._told = None

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is remembered, oldest first."""
        if self._told is None:
            self._told = tuple(self._faults)
        return self._told

    @property
    def faults_of(self) -> dict[str, tuple[Fault, ...]]:
        """The same by place, in a dict of the caller's own; only places that had one are in it."""
        for place in self._changed:
            there = self._of[place]
            if there:
                self._told_of[place] = tuple(there)
            else:
                del self._of[place]
                self._told_of.pop(place, None)
        self._changed.clear()
        return self._told_of.copy()
