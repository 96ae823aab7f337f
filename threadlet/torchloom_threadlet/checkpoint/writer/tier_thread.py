"""One tier of a writer: it stores orders one after another, beside the other tiers."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from torchloom_core.checkpoints.storage import LocalFolder, Storage
from torchloom_core.floor.errors import CheckpointError, TorchloomError
from torchloom_threadlet.checkpoint.writer.bases import Bases
from torchloom_threadlet.checkpoint.writer.node_memory import NodeMemory
from torchloom_threadlet.checkpoint.writer.orders import Report, TierPlace
from torchloom_threadlet.checkpoint.writer.pace import Pace
from torchloom_threadlet.checkpoint.writer.storing import (
    Part,
    complete,
    forget,
    forget_others,
    forget_unfinished,
    store,
)

_FAILURES = (OSError, TorchloomError, msgspec.MsgspecError, ImportError, MemoryError)


class TierThread(threading.Thread):
    """Stores what is given to :meth:`put`, until :meth:`finish`; ``report`` is called for each."""

    def __init__(
        self,
        tier: TierPlace,
        storage: Storage,
        pace: Pace,
        report: Callable[[Report], object],
    ) -> None:
        super().__init__(name=tier.name, daemon=True)
        self._tier, self._storage, self._report = tier, storage, report
        self._pace = pace if "://" in tier.place else None
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._bases = Bases() if tier.is_small else None
        self._is_left = self._is_cleared = False
        self._hopeful: set[int] = set()

    def put(self, part: Part) -> None:
        """Have a part stored."""
        self._hopeful.add(part.order.step)
        self._parts.put(part)

    def cancel(self, step: int) -> None:
        """Wait no longer for other ranks' parts of a step."""
        self._hopeful.discard(step)

    def finish(self) -> None:
        """Store what is left, and end; the trainer is gone, another may be there already."""
        self._is_left = True
        self._parts.put(None)

    def run(self) -> None:
        """Store one part after another; then let others save here."""
        while (part := self._parts.get()) is not None:
            for report in self._carry_out(part):
                self._report(report)
            self._hopeful.discard(part.order.step)
        self._storage.unlock()

    def _is_hopeless(self, part: Part) -> bool:
        """Return whether a rank has probably not saved: it said so, or goes on to another step."""
        return part.order.step not in self._hopeful or not self._parts.empty()

    def _carry_out(self, part: Part) -> Iterator[Report]:
        """Carry out one order, and yield what became of it."""
        order, storage, begun_s = part.order, self._storage, time.monotonic()

        def report(what: str, detail: str = "", size: int = 0) -> Report:
            return Report(
                slot=order.slot,
                tier=self._tier.name,
                generation=order.generation,
                step=order.step,
                what=what,
                seconds=time.monotonic() - begun_s,
                bytes=size,
                detail=detail,
            )

        try:
            if order.rank == 0 and (other := storage.lock(order.owner)):
                raise CheckpointError(f"{storage.name}: {other} saves its checkpoints there")
            if self._tier.in_memory and not self._is_left:
                forget_others(storage, part)
            elif order.rank == 0 and isinstance(storage, LocalFolder) and not self._is_cleared:
                forget_unfinished(storage, part)  # it may fill the disk
            self._is_cleared = False
            if self._bases is not None:
                part = self._bases.small(part)
            size = store(storage, part, self._pace)
            if self._bases is not None:
                self._bases.take(part)
        except _FAILURES as error:
            yield report("failed", _line(error))
            return
        yield report("stored", size=size)
        if isinstance(storage, NodeMemory) and (why := storage.take_problem()):
            yield report("not_copied", why)
        if order.rank != 0:
            return
        try:
            why = complete(storage, part, lambda: self._is_hopeless(part))
        except _FAILURES as error:
            why = _line(error)
        if why:
            yield report("incomplete", why)
            return
        self._is_cleared = True
        yield report("complete", size=size * order.ranks)
        try:
            if not self._tier.in_memory:
                forget(storage, self._tier.keep, self._tier.keep_every_s)
        except _FAILURES as error:
            yield report("not_removed", _line(error))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
