"""The launches of the run's present job, to distinguish a new job from a restart."""

from collections.abc import Iterable, Iterator

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.live.fleet.desired_knobs import DesiredKnobs
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.events import Launched
from torchloom_core.wire.messages import Hello

AT_WORK = frozenset({"joining", "training", "paused", "draining"})
"""States of workers that take part in a job; a standby does not."""


class Launches:
    """The launches of the present job; desired values of an earlier job wait.

    Attributes
    ----------
    table : PersistentTable of Launched
        By launch id.
    new_job_ns : int
        When a job began after another, until the kernel has taken note; 0 if none has.
    """

    def __init__(self, fleet: FleetState, desired: DesiredKnobs, stale_after_s: float) -> None:
        self._fleet = fleet
        self._desired = desired
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self._all_are_here_ns = 0
        self._came_ns: dict[str, int] = {}
        self._has_had_one = False
        self._undecided_ns: dict[str, int] = {}
        self.new_job_ns = 0
        self.table: PersistentTable[Launched] = PersistentTable("launch")

    def restore(self, launches: Iterable[Launched], now_ns: int) -> None:
        """Restore the launches of an earlier Weaver, before workers send a hello to this one."""
        self.table.update((one.launch, one) for one in launches)
        self._has_had_one = True
        if self._desired.table:
            self._all_are_here_ns = now_ns + self._stale_ns

    def is_in_job(self, hello: Hello) -> bool:
        """Return whether the worker is part of the present job; one without a launch id is."""
        return not hello.launch or hello.launch in self.table

    def register(
        self, hello: Hello, before: str, now_ns: int
    ) -> tuple[list[Hello], list[KnobDesired]]:
        """Take a hello, where ``before`` was the launch of the worker's earlier incarnation.

        If a worker comes back under another launch, the earlier launch is over. Returns the same
        as :meth:`look`.
        """
        if before != hello.launch:
            self.table.pop(before, None)
        if self.is_in_job(hello):
            self._note_new_job(hello, self._undecided_ns.get(hello.launch, 0))
            return [], []
        self._came_ns.setdefault(hello.launch, now_ns)
        # With many hellos at once that cannot be judged yet, comparing all pairs would be slow.
        if len(self._came_ns) > 1 and hello.resumes is None:
            return [], []
        return self._judge([hello], now_ns)

    def look(self, now_ns: int) -> tuple[list[Hello], list[KnobDesired]]:
        """Judge unknown launches, once per tick.

        Returns
        -------
        list of Hello
            Workers that are part of the present job from now on.
        list of KnobDesired
            Desired values that wait from now on, as the first of them begins a new job.
        """
        if not self._came_ns:
            return [], []
        fleet = self._fleet
        present = [hello for row, hello in enumerate(fleet.hello) if not fleet.is_over(row)]
        unknown = [hello for hello in present if not self.is_in_job(hello)]
        judged = self._judge(unknown, now_ns)
        still = {hello.launch for hello in unknown if not self.is_in_job(hello)}
        self._came_ns = {launch: ns for launch, ns in self._came_ns.items() if launch in still}
        return judged

    def _judge(
        self, unknown: Iterable[Hello], now_ns: int
    ) -> tuple[list[Hello], list[KnobDesired]]:
        accepted: list[Hello] = []
        waiting: list[KnobDesired] = []
        goes_on = any(map(self.is_in_job, self._at_work(now_ns)))
        for hello in unknown:
            if not goes_on:
                state = self._fleet.state[self._fleet.row_of[hello.worker]]
                if state not in AT_WORK or not self._is_decided(hello, now_ns):
                    continue
                if not hello.resumes:
                    came_ns = self._came_ns.get(hello.launch, now_ns)
                    waiting = self._desired.set_waiting(came_ns)
                    self._note_new_job(hello, came_ns if self._has_had_one else 0)
                    self.table.clear()
                goes_on = True
            self._has_had_one = True
            self.table[hello.launch] = Launched(launch=hello.launch)
            self._came_ns.pop(hello.launch, None)
            accepted.append(hello)
        return accepted, waiting

    def _note_new_job(self, hello: Hello, came_ns: int) -> None:
        """Take note that a job began after another, once its first step was not a later one."""
        self._undecided_ns.pop(hello.launch, None)
        if hello.resumes is None and came_ns:
            self._undecided_ns = {hello.launch: came_ns}
        elif not hello.resumes and came_ns:
            self.new_job_ns = came_ns

    def _at_work(self, now_ns: int) -> Iterator[Hello]:
        fleet, since_ns = self._fleet, now_ns - self._stale_ns
        for row in fleet.standing.each_in(AT_WORK):
            if fleet.last_seen_ns(row) >= since_ns:
                yield fleet.hello[row]

    def _is_decided(self, hello: Hello, now_ns: int) -> bool:
        """Return whether it is decided if this worker begins a job, as no other is at work."""
        is_new = hello.resumes is False and now_ns >= self._all_are_here_ns
        return bool(hello.resumes) or is_new or not self._desired.table
