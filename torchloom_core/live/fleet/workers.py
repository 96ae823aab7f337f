"""The workers of the run, one row each, with the state of their incarnation."""

from collections import Counter
from collections.abc import Collection

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.declared_knobs import DeclaredKnobs
from torchloom_core.live.fleet.incarnations import Incarnations
from torchloom_core.live.fleet.quorums import Quorums
from torchloom_core.live.fleet.report_times import ReportTimes
from torchloom_core.live.fleet.standing import OVER, Standing
from torchloom_core.wire.endings import in_a_word
from torchloom_core.wire.limits import MAX_WORKERS, KnobValue
from torchloom_core.wire.messages import Exit, Hello, KnobSpec
from torchloom_core.wire.operations import (
    Drain,
    Join,
    Operation,
    Pause,
    Resume,
    SetKnob,
    SetKnobs,
    Suspend,
    done_by,
)

_STATE_AFTER: dict[type, str] = {
    Drain: "left",
    Join: "joining",
    Pause: "paused",
    Resume: "training",
    Suspend: "paused",
}


class Workers:
    """Every worker that registered, but for those long gone.

    A new worker takes the row of the worker that was silent for longest, if that is more than
    ``forget_after_s``: the table grows no larger than the run.

    Attributes
    ----------
    row_of : dict of str to int
        Worker to its row.
    hello, state, knobs : list
        The last report of each row; a hello is the worker's placement, too.
    ending : list of str
        How each row's incarnation ended: ``drained``, or the word of
        :func:`~torchloom_core.wire.endings.in_a_word`; "" before.
    standing : Standing
        The rows and groups by state.
    times : ReportTimes
        When each row last reported, its step and progress.
    quorums : Quorums
        The quorum of each worker.
    long_gone : list of str
        Workers whose rows were taken by others, until the Weaver has taken note.
    """

    def __init__(self, stale_after_s: float, forget_after_s: float) -> None:
        self._forget_ns = round(forget_after_s * SECOND_NS)
        self._forgotten: list[str] = []
        self.long_gone: list[str] = []
        self._incarnations = Incarnations()
        self._declared = DeclaredKnobs()
        self._declared_of: dict[str, DeclaredKnobs] = {}
        self.row_of: dict[str, int] = {}
        self.hello: list[Hello] = []
        self.standing = Standing()
        self.state = self.standing.state
        self.ending: list[str] = []
        self.knobs: list[dict[str, KnobValue]] = []
        self.times = ReportTimes(stale_after_s)
        self.quorums = Quorums(self.hello)
        self._roles_of: dict[str, dict[str, int]] = {}
        self._of_role: Counter[str] = Counter()

    def register(self, hello: Hello, ts_ns: int) -> bool:
        """Register a hello; return whether it begins an incarnation.

        A hello is ignored if its incarnation may not follow the known one, or if it is a new
        worker's and the run is full.
        """
        row = self.row_of.get(hello.worker)
        if row is None and self.is_full and self._forgettable(ts_ns) is None:
            return False
        begins = row is None or self._may_begin(row, hello.incarnation, ts_ns)
        if row is None:
            row = self._add_row(hello, ts_ns)
        elif begins:
            self._incarnations.note(row, self.hello[row].incarnation, ended=self.is_over(row))
        elif self.hello[row].incarnation != hello.incarnation:
            return False
        if self.state[row] != "gone":
            self._count_knobs(self.hello[row], -1)
        self.quorums.register(hello, self.hello[row])
        self._count_role(self.hello[row], -1)
        self._count_role(hello, 1)
        self.standing.place(row, hello.group)
        self.hello[row] = hello
        self.knobs[row] = dict(hello.values)
        self.times.mark_seen(row, ts_ns)
        if begins:
            self.standing.move(row, hello.state)
            self.ending[row] = ""
            self.times.begin(row, ts_ns)
        if self.state[row] != "gone":
            self._count_knobs(hello, 1)
        return begins

    def _count_knobs(self, hello: Hello, more: int) -> None:
        self._declared.count(hello.knobs, more)
        self._declared_of.setdefault(hello.role, DeclaredKnobs()).count(hello.knobs, more)

    @property
    def is_full(self) -> bool:
        """Whether the run has reached its limit of workers, counting all that are remembered."""
        return len(self.hello) >= MAX_WORKERS

    def _forgettable(self, now_ns: int) -> int | None:
        """Return the row of the worker that was silent for longest, if that is long enough."""
        if not self.hello:
            return None
        row = int(self.times.seen_ns[: len(self.hello)].argmin())
        return row if self.times.seen_ns[row] < now_ns - self._forget_ns else None

    def _forget(self, row: int) -> None:
        """Forget the worker in a row, for the next one in it."""
        hello = self.hello[row]
        del self.row_of[hello.worker]
        if self.state[row] != "gone":
            self._count_knobs(hello, -1)
        self._count_role(hello, -1)
        if not any(self._roles_of[hello.group].values()):
            del self._roles_of[hello.group]
        self.quorums.forget(hello)
        self._incarnations.forget(row)
        self.standing.move(row, "gone")
        self.times.forget(row)
        self._forgotten.append(hello.worker)

    def take_forgotten(self) -> list[str]:
        """Return the workers whose rows were taken since the last call."""
        forgotten, self._forgotten = self._forgotten, []
        self.long_gone += forgotten
        return forgotten

    def _add_row(self, hello: Hello, ts_ns: int) -> int:
        free = self._forgettable(ts_ns)
        if free is not None:
            self._forget(free)
            self.row_of[hello.worker] = free
            self.hello[free] = hello
            self._count_role(hello, 1)
            self.standing.place(free, hello.group)
            return free
        row = self.row_of[hello.worker] = len(self.hello)
        self.times.grow(row + 1)
        self.hello.append(hello)
        self._count_role(hello, 1)
        self.standing.add(hello.group)
        self.ending.append("")
        self.knobs.append({})
        return row

    def _count_role(self, hello: Hello, by: int) -> None:
        roles = self._roles_of.setdefault(hello.group, {})
        roles[hello.role] = roles.get(hello.role, 0) + by
        self._of_role[hello.role] += by
        if not roles[hello.role] and hello.role != next(iter(roles)):  # of equals the first counts
            del roles[hello.role]

    def _may_begin(self, row: int, incarnation: int, ts_ns: int) -> bool:
        """Return whether an incarnation may replace the known one in ``row``."""
        vacant = self.is_over(row) or self.times.is_stale(row, ts_ns)
        present = self.hello[row].incarnation
        return self._incarnations.may_follow(row, incarnation, present, vacant=vacant)

    def end(self, message: Exit, ts_ns: int) -> bool:
        """Mark a worker's process as ended; return False if it is not the known incarnation."""
        row = self.row_of.get(message.worker)
        if row is None:
            return False
        if not self.is_registered(message.worker, message.incarnation):
            self._incarnations.note(row, message.incarnation, ended=True)
            return False
        if self.state[row] == "gone":
            return False
        self._count_knobs(self.hello[row], -1)
        self.standing.move(row, "gone")
        self.ending[row] = self.ending[row] or in_a_word(
            message.status, expected=message.expected, error=message.error
        )
        self.times.seen_ns[row] = ts_ns
        return True

    def apply(self, worker: str, operation: Operation) -> None:
        """Apply an operation that a worker has just done, before its telemetry shows it."""
        row = self.row_of[worker]
        done = done_by(operation, self.hello[row].group)
        if isinstance(done, Drain):
            self.ending[row] = "drained"
        if isinstance(done, SetKnob):
            self.knobs[row][done.knob] = done.value
        elif isinstance(done, SetKnobs):
            self.knobs[row].update(done.values)
        elif self.state[row] != "gone":
            self.standing.move(row, _STATE_AFTER.get(type(done), self.state[row]))

    def group_of(self, worker: str) -> str:
        """Return the replica group of a worker, empty before its hello."""
        row = self.row_of.get(worker)
        return "" if row is None else self.hello[row].group

    def role_of(self, group: str) -> str:
        """Return the role of most of a replica group's workers, empty before its first hello."""
        roles = self._roles_of.get(group)
        return max(roles, key=roles.__getitem__) if roles else ""

    def is_only_role(self, role: str) -> bool:
        """Return whether all known workers have this role."""
        return bool(self.row_of) and self._of_role[role] == len(self.row_of)

    def launch_of(self, worker: str) -> str:
        """Return the launch of a worker's known incarnation; "" before its hello."""
        row = self.row_of.get(worker)
        return "" if row is None else self.hello[row].launch

    def is_over(self, row: int) -> bool:
        """Return whether the worker in ``row`` has left or its process has ended."""
        return self.state[row] in OVER

    def is_training(self, worker: str) -> bool:
        """Return whether the worker is known and training."""
        row = self.row_of.get(worker)
        return row is not None and self.state[row] == "training"

    def is_gone(self, worker: str, incarnation: int | None = None) -> bool:
        """Return whether the worker, or this incarnation of it, is known to have ended."""
        row = self.row_of.get(worker)
        if row is None:
            return False
        another = incarnation not in (None, self.hello[row].incarnation)
        return another or self.state[row] == "gone"

    def is_registered(self, worker: str, incarnation: int) -> bool:
        """Return whether this is the registered incarnation of the worker."""
        row = self.row_of.get(worker)
        return row is not None and self.hello[row].incarnation == incarnation

    def see(self, row: int, state: str) -> None:
        """Set the state that a worker reports, unless the report is outdated."""
        present = self.state[row]
        if present not in OVER and (state != "standby" or present == "standby"):
            self.standing.move(row, state)

    @property
    def knob_specs(self) -> dict[str, KnobSpec]:
        """Every knob of present workers, with the spec that most of them declare."""
        return self._declared.specs

    @property
    def roles(self) -> list[str]:
        """The roles that workers ever had, in the order in which they came."""
        return list(self._declared_of)

    def specs_of(self, role: str) -> dict[str, KnobSpec]:
        """Return every knob of the present workers of a role, as :attr:`knob_specs`."""
        declared = self._declared_of.get(role)
        return declared.specs if declared else {}

    def roles_with(self, knobs: Collection[str]) -> list[str]:
        """Return the roles of present workers that have one of the knobs, by name."""
        return sorted(r for r, own in self._declared_of.items() if own.specs.keys() & set(knobs))

    def knob_specs_by_use(self) -> list[KnobSpec]:
        """Return the same, those declared by most workers first."""
        return self._declared.by_use()

    def alive(self, worker: str, now_ns: int) -> int | None:
        """Return the worker's incarnation if it is reachable and has not ended."""
        row = self.row_of.get(worker)
        if row is None or self.state[row] == "gone":
            return None
        return None if self.times.is_stale(row, now_ns) else self.hello[row].incarnation

    def last_seen_ns(self, row: int) -> int:
        """Return the time of the last message from the worker in ``row``."""
        return int(self.times.seen_ns[row])
