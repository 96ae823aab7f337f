"""A worker's pauses, on the Weaver's lease, and its suspensions, which last until resumed."""

import math
import threading
import time
from typing import Any

from torchloom_core.wire.messages import WorkerState
from torchloom_threadlet.identity import Identity
from torchloom_threadlet.trainer.pause_lease import PauseLease
from torchloom_threadlet.trainer.reporter import Reporter

_LOOK_S = 0.2


class Pausing(Reporter):
    """Begins and ends them.

    ``lease``: the present pause; used under the lock of the inbox.
    ``parking``: the checkpointer, if it can leave the state in the memory of nodes.
    """

    def __init__(self, identity: Identity, state: WorkerState) -> None:
        super().__init__(identity, state)
        self.lease = PauseLease()
        self.parking: Any = None
        self._inbox_lock = threading.Lock()

    def announce(self) -> None:
        """Report what the worker can do now."""
        raise NotImplementedError

    def pause(self, cause: str) -> str:
        """Begin a pause; return how long it can last, if the framework limits it."""
        with self._inbox_lock:
            self.lease.begin(cause, time.monotonic())
        self.enter("paused")
        longest_s = self.lease.longest_s
        return f"for at most {longest_s:g} s" if math.isfinite(longest_s) else ""

    def suspend(self, cause: str) -> None:
        """Begin to wait until resumed."""
        with self._inbox_lock:
            self.lease.hold(cause)
        self.enter("paused")
        self.announce()

    def resume(self) -> None:
        """End a pause or a suspension, if there is one."""
        if self.state != "paused":
            return
        self.enter("training")
        if self.lease.is_held:
            with self._inbox_lock:
                self.lease.release()
            self.announce()

    @property
    def is_parked(self) -> bool:
        """Whether the state is in the memory of nodes, and has to be loaded before a step."""
        return self.parking is not None and bool(self.parking.is_parked)

    def is_pause_over(self, cause: str) -> bool:
        """Return whether this verdict's pause was cancelled before it was carried out."""
        with self._inbox_lock:
            return self.lease.is_over(cause)

    def left_of_pause(self) -> tuple[float, str]:
        """Return the seconds left to wait, and why the pause has just ended by itself, if so."""
        with self._inbox_lock:
            now_s = time.monotonic()
            left_s = self.lease.left_s(now_s)
            return left_s, self.lease.end(now_s) if left_s <= 0 else ""

    def next_look_s(self) -> float:
        """Read rows from the device; return after how many seconds a waiting worker looks again.

        It does so for rows that are not complete yet, and whether a parked worker is replaced.
        """
        device = self.phases.device
        has_rows = device is not None and device.read() > 0
        return _LOOK_S if has_rows or self.is_parked else threading.TIMEOUT_MAX
