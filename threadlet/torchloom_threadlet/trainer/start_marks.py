"""Marks in the start of a trainer: which phase it is in until its first committed step.

There is one phase at any moment, so the phases add up to the time of the start. Without a mark it
is ``import`` until ``attach()``, then ``build`` until ``loom.manage`` and until a restore begins,
then ``first_step``; what is marked within these is counted apart.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchloom_core.wire.start_phases import (
    BUILD,
    COMPILE,
    DATA_LOADER,
    FIRST_STEP,
    IMPORT,
    JOIN,
    QUORUM,
    RESTORE,
    STATE_TRANSFER,
    Start,
)

_MARKED = frozenset({BUILD, COMPILE, DATA_LOADER, JOIN, QUORUM, RESTORE, STATE_TRANSFER})


class StartMarks:
    """The start of one incarnation.

    All methods may be called at any time and from any thread; the phases of other threads than the
    one that attached are ignored, and so is everything once the first step is committed.

    Parameters
    ----------
    began_ns : int
        The start of the process, ns since the epoch.
    report : callable
        Gets the start when a phase begins for the first time, and at the end.
    is_standby : bool
        Whether it waits to join: its start begins then.

    Attributes
    ----------
    awaits_commit : bool
        Whether a step counts only once the framework has committed it.
    """

    def __init__(
        self, began_ns: int, report: Callable[[Start], object], *, is_standby: bool
    ) -> None:
        self.awaits_commit = False
        self._report = report
        self._is_standby = is_standby
        self._joined = False
        self._is_over = False
        self._is_healing = False
        self._thread = threading.get_ident()
        # Reentrant: a signal handler of the script may be called within a mark.
        self._lock = threading.RLock()
        self._base = IMPORT
        self._within: list[str] = []
        self._began_ns = began_ns
        self._seconds: dict[str, float] = {}
        self._phase = IMPORT
        self._since_ns = time.monotonic_ns() - max(0, time.time_ns() - began_ns)
        self._enter_base(BUILD)

    def built(self) -> None:
        """Take note that ``loom.manage`` has registered what trains."""
        if self._base == BUILD:
            self._enter_base(FIRST_STEP)

    def joined(self) -> None:
        """Begin anew: a standby may train from now on."""
        with self._lock:
            if self._is_standby and not self._is_over:
                self._began_ns, self._since_ns = time.time_ns(), time.monotonic_ns()
                self._seconds.clear()
                self._is_standby, self._joined = False, True
                self._report(self._start())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Be in a phase; one within another is counted apart from it."""
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def begin(self, name: str) -> None:
        """Begin a phase; names that no start has are ignored."""
        if not self._is_over and name in _MARKED and threading.get_ident() == self._thread:
            with self._lock:
                self._within.append(name)
                self._turn()
                if name == RESTORE:  # what went before was not the first step
                    passed_s = self._seconds.pop(FIRST_STEP, 0.0)
                    self._seconds[BUILD] = self._seconds.get(BUILD, 0.0) + passed_s

    def end(self, name: str) -> None:
        """End the last phase of this name."""
        if not self._is_over and name in self._within and threading.get_ident() == self._thread:
            with self._lock:
                del self._within[len(self._within) - 1 - self._within[::-1].index(name)]
                self._turn()

    def transfer(self, is_running: bool) -> None:
        """Take note that a thread copies a peer's state: waiting for the quorum is that now."""
        with self._lock:
            self._is_healing = is_running
            self._turn()

    def stepped(self) -> None:
        """Take note of the end of a step."""
        if not self.awaits_commit:
            self.committed()

    def committed(self) -> None:
        """End the start: the first step is committed."""
        if self._is_over:
            return
        with self._lock:
            self._is_over = True
            self._count()
            self._phase = ""
            self._report(self._start())

    def _enter_base(self, name: str) -> None:
        with self._lock:
            self._base = name
            self._turn()

    def _turn(self) -> None:
        """Count the present phase, and enter the one that the marks give."""
        if self._is_over:
            return
        name = self._within[-1] if self._within else self._base
        if name == QUORUM and self._is_healing:
            name = STATE_TRANSFER
        if name == self._phase:
            return
        self._count()
        self._phase = name
        if self._seconds.setdefault(name, 0.0) == 0.0 and not self._is_standby:
            self._report(self._start())

    def _count(self) -> None:
        now_ns = time.monotonic_ns()
        spent_s = (now_ns - self._since_ns) / 1e9
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + spent_s
        self._since_ns = now_ns

    def _start(self) -> Start:
        return Start(
            began_ns=self._began_ns,
            phase=self._phase,
            joined=self._joined,
            seconds={name: spent_s for name, spent_s in self._seconds.items() if spent_s},
        )
