"""The state of a rendezvous: it takes workers from one assignment to the next, without I/O.

Every method returns the messages to send. What a worker has is taken from its own report, made
after it has left its generation, so nothing is decided on a state that can still change.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from torchloom_core.assignments.checking import copies, expert_copies
from torchloom_core.floor.errors import AssignmentError
from torchloom_core.live.rendezvous.choice import Known, first_of
from torchloom_core.live.rendezvous.expert_parts import (
    ExpertStates,
    why_no_expert,
    with_experts,
    with_mirrors,
)
from torchloom_core.live.rendezvous.holdings import (
    Holdings,
    everything,
    holdings,
    problem_of,
    why_lost,
    with_start,
)
from torchloom_core.live.rendezvous.known_worker import KnownWorker, Send
from torchloom_core.live.rendezvous.measured import Times
from torchloom_core.live.rendezvous.outlooks import outlook_of
from torchloom_core.live.rendezvous.planned import Planned
from torchloom_core.live.rendezvous.settings import Saved, Settings
from torchloom_core.live.rendezvous.workers import Workers
from torchloom_core.wire.assignment import MAX_PARTS, Assignment
from torchloom_core.wire.generations import (
    Beat,
    Begin,
    Fault,
    FromWorker,
    Halt,
    Join,
    Leave,
    Outlook,
    Regroup,
    Stop,
    Stopped,
)
from torchloom_core.wire.planned_changes import Change

Phase = Literal["forming", "running", "stopping"]
_SHOWN, _LEAVES = 256, "leaves"
_LAST = "the last one of a worker that has finished: end all workers after the same step"


@dataclass(slots=True)
class Rendezvous:
    """The workers, and the present generation.

    Parameters
    ----------
    save : callable
        Stores what the next process needs, None for nothing; called before an assignment is sent.
    saved : Saved, optional
        What an earlier process has stored: its workers have ``heartbeat_timeout_s`` to come back.

    Attributes
    ----------
    phase : str
        ``forming`` until there are enough workers, ``stopping`` while workers leave a generation.
    """

    settings: Settings
    now_s: float
    save: Callable[[Saved | None], object]
    saved: Saved | None = None
    phase: Phase = "forming"
    assignment: Assignment | None = None
    last_generation: int = 0
    _program: Join | None = None
    _times: Times = field(default_factory=Times)
    _experts: ExpertStates = field(default_factory=ExpertStates)
    _stages: int = 0
    _workers: Workers = field(default_factory=Workers)
    _missing: set[str] = field(default_factory=set)
    _missing_until_s: float = 0.0
    _stop_sent_s: float | None = None
    planned: Planned = field(default_factory=Planned)
    _final: int | None = None  # the last step of all, once a worker has finished

    def __post_init__(self) -> None:
        if self.saved is not None:
            self.assignment, self._program = self.saved.assignment, self.saved.join
            self._stages, self.phase = self.saved.stages, "running"
            self.last_generation = self.assignment.generation
            self.planned.left_out = frozenset(self.saved.left_out)
            self._missing = set(self.assignment.workers)
            self._missing_until_s = self.now_s + self.settings.heartbeat_timeout_s

    @property
    def members(self) -> tuple[str, ...]:
        """The connected workers of the present generation that have a part in it."""
        return self._workers.members(self.assignment)

    @property
    def standbys(self) -> tuple[str, ...]:
        """The connected workers that have no part in the present generation."""
        return self._workers.standbys(self.assignment)

    def refusal(self, join: Join) -> str:
        """Return in one line why a worker cannot take part; "" if it can."""
        known = self._workers.get(join.worker)
        if known is not None and join.incarnation < known.join.incarnation:
            return f"{join.worker}: a process that was started later has this name"
        if known is None and len(self._workers) >= MAX_PARTS:
            return f"{join.worker}: need at most {MAX_PARTS} workers, this is one more"
        first = join if self._is_stale(join) else self._program or join
        return problem_of(join, first, is_new=self.assignment is None)

    def outlook(self) -> Outlook:
        """Return the present state, for who looks at it."""
        waits_for = 0 if self.assignment else self.settings.workers - len(self._workers)
        state = self.phase, waits_for, self.assignment, self._program
        known = self._times.program(self._program, self.assignment)
        return outlook_of(*state, known, self._workers, self._experts, self.planned)

    @property
    def changes(self) -> tuple[object, ...]:
        """What is different after a change that a client is to see at once."""
        return self.last_generation, self.phase, self.standbys, *self.planned.changes

    def change(self, change: Change, now_s: float) -> list[Send]:
        """Ask the members for the generation on which a client has decided."""
        self.now_s = now_s
        present = None if self.phase != "running" or self._missing else self.assignment
        there = self._workers.keys()
        return self._ask(self.planned.change(change, present, there, self.standbys, self._known))

    def wake(self, now_s: float) -> None:
        """Count the workers' silence from now on: this process was asleep itself."""
        self._workers.wake(now_s)

    def receive(self, worker: str, message: FromWorker, now_s: float) -> list[Send]:
        """Take a message; the first one of a connection is a Join that is not refused."""
        self.now_s = now_s
        if isinstance(message, Join):
            return self._join(worker, message)
        if (known := self._workers.get(worker)) is None:
            return [Send(worker, None)]
        known.seen_s = now_s
        is_present = self._is_member(worker)
        match message:
            case Beat():
                known.committed = message.committed
                self._measured(worker, message)
            case Fault(generation=number) if is_present and number == self.last_generation:
                return self._stop(f"{worker}: {message.detail}")
            case Stopped(generation=number) if is_present and number == self.last_generation:
                known.stopped = message
                self._measured(worker, message)
                planned = self.planned.asked_for > number
                return ([] if planned else self._stop(f"{worker} has stopped")) + self._go_on()
            case Leave(finished=True) if is_present:
                known.has_finished, self._final = True, message.committed
                return self._go_on()
            case Leave(at_once=False):
                present = self.assignment if self.phase == "running" else None
                return self._ask(self.planned.retire(worker, present))
            case Leave():
                return [*self.end(worker, now_s, why=_LEAVES), Send(worker, None)]
        return []

    def end(self, worker: str, now_s: float, *, why: str = "has ended") -> list[Send]:
        """Take note that a worker's connection has ended."""
        self.now_s = now_s
        was_member = self._is_member(worker)
        known = self._workers.pop(worker, None)
        if self.assignment is None and not self._workers:
            self._program = None
        if known is None or not was_member:
            return []
        stop = [] if known.has_finished else self._stop(f"{worker} {why}")
        return stop + self._go_on(all_left=why == _LEAVES)

    def tick(self, now_s: float) -> list[Send]:
        """End workers that are silent, or do not leave a generation that is over."""
        self.now_s = now_s
        silent = self._workers.silent_since(now_s - self.settings.heartbeat_timeout_s)
        ended = dict.fromkeys(silent, "is silent")
        sent_s = self._stop_sent_s
        if sent_s is not None and now_s - sent_s > self.settings.stop_timeout_s:
            ended |= dict.fromkeys(self._not_stopped(), "does not leave a generation")
        sends: list[Send] = []
        for name, why in ended.items():
            sends += [Send(name, None), *self.end(name, now_s, why=why)]
        if self._missing and now_s > self._missing_until_s:
            if not self.members:
                return sends + self._forget()
            missing, self._missing = min(self._missing), set()
            sends += self._stop(f"{missing} has not come back") + self._go_on()
        return sends + self._plan()

    def _measured(self, worker: str, message: Beat | Stopped) -> None:
        self._times.take(worker, message, self.now_s, self.assignment)
        self._experts.take(worker, message.expert_state)

    def _is_member(self, worker: str) -> bool:
        return self._workers.is_member(worker, self.assignment)

    def _not_stopped(self) -> list[str]:
        return self._workers.not_stopped(self.assignment)

    def _is_stale(self, join: Join) -> bool:
        """Return whether a new process shows that nobody is left of the saved generation."""
        return bool(self._missing) and not self.members and not join.generation

    def _forget(self) -> list[Send]:
        """Begin anew with those that are connected: nobody of the saved generation came back."""
        self.assignment, self._missing, self.phase = None, set(), "forming"
        self._program = self._workers.first_join
        return self._form()

    def _join(self, worker: str, join: Join) -> list[Send]:
        if self._is_stale(join) and problem_of(join, self._program or join, is_new=False):
            self._forget()
        self._program = self._program or join
        sends: list[Send] = []
        if worker in self._workers:  # its earlier connection has not ended yet
            sends = self.end(worker, self.now_s, why="has connected again")
        self._workers[worker] = known = KnownWorker(join, self.now_s)
        if not join.generation:
            self.planned.comes(worker)
        if self.assignment is None:
            return sends + self._form()
        if worker in self._missing:
            self._missing.discard(worker)
            if join.generation == self.assignment.generation:
                known.generation = join.generation
                is_over = self._stop_sent_s is not None
                again = Stop(generation=join.generation, why="a worker has ended meanwhile")
                return [*sends, *([Send(worker, again)] if is_over else []), *self._go_on()]
            return sends + self._stop(f"{worker} has started again") + self._go_on()
        return sends + self._plan(at_once=True)

    def _form(self) -> list[Send]:
        """Begin the first generation, once there are enough workers."""
        if len(self._workers) < self.settings.workers or self._program is None:
            return []
        program = self._program
        try:
            known = self._times.program(program, None)
            first = first_of(self._workers, program, known, self.settings.standbys)
        except AssignmentError as error:
            return self._halt(str(error))
        self._stages = len(first.routes[0])
        first = msgspec.structs.replace(first, generation=self.last_generation + 1)
        has = Holdings(program.committed, everything(first), everything(first, experts=True))
        return self._begin(first, has)

    def _stop(self, why: str) -> list[Send]:
        """Have all members leave the present generation."""
        if self.assignment is None or self._stop_sent_s is not None:
            return []
        self.phase, self._stop_sent_s = "stopping", self.now_s
        self.planned.fail(why)
        stop = Stop(generation=self.assignment.generation, why=why[:_SHOWN])
        return [Send(name, stop) for name in self._not_stopped()]

    def _go_on(self, *, all_left: bool = False) -> list[Send]:
        """Begin the next generation once nobody is left in the present one."""
        present, program = self.assignment, self._program
        if present is None or program is None or self._missing or self._not_stopped():
            return []
        if self._final is not None:
            if all(self._workers[name].has_finished for name in self.members):
                return self._halt("all steps are done", finished=True)
            reports = self._workers.reports(present)
            more = [name for name, one in reports.items() if one.committed >= self._final]
            if more:
                return self._halt(f"{more[0]} goes on after step {self._final}, {_LAST}")
            # The others can commit the last step, and need no peer for it.
            everywhere = everything(present), everything(present, experts=True)
            return self._begin(present, Holdings(self._final, *everywhere))
        if self.phase == "running" and not self.planned.asked_for:
            return []
        if not (reports := self._workers.reports(present)):
            return self._halt("all workers of the generation have ended", finished=all_left)
        has = with_start(holdings(reports), program, self._workers)
        standbys = tuple(name for name in self.standbys if name not in present.workers)
        chosen = self.planned.following(present, has, standbys, self._known())
        if chosen is None:
            return self._halt(why_lost(present, has.layers))
        return self._begin(chosen, has)

    def _begin(self, chosen: Assignment, has: Holdings) -> list[Send]:
        number, program = self.last_generation + 1, self._program
        assert program is not None
        others = tuple(name for name in self._workers if name not in chosen.workers)
        has, back = with_mirrors(has)
        chosen = with_experts(chosen, has, back)
        if why := why_no_expert(chosen, program.expert_layers):
            return self._halt(why)
        chosen = msgspec.structs.replace(chosen, generation=number, standbys=others)
        begin = Begin(
            assignment=chosen,
            committed=has.committed,
            store=self._workers.store_for(chosen, has.committed),
            knobs_of=self._workers.knobs_of(chosen.workers),
            copies=copies(chosen, has.layers),
            expert_copies=expert_copies(chosen, has.experts),
        )
        self.planned.begin(self.now_s, chosen.workers)
        left_out = tuple(self.planned.left_out)
        self.save(Saved(assignment=chosen, join=program, stages=self._stages, left_out=left_out))
        self.assignment, self.last_generation, self.phase = chosen, number, "running"
        self._stop_sent_s = None
        self._workers.begin(chosen, has)
        sends = [Send(name, begin) for name in self._workers.unfinished]
        return sends + self._plan(at_once=True)

    def _plan(self, *, at_once: bool = False) -> list[Send]:
        """Ask the members for a new generation, if another assignment would make steps faster."""
        if self.assignment is None or self.phase != "running" or (self._missing and not at_once):
            return []
        ready = tuple(name for name in self.standbys if name not in self.planned.left_out)
        look = self.planned.take_in if at_once else self.planned.look
        return self._ask(look(self.assignment, ready, self.now_s, self._known))

    def _ask(self, asked: Regroup | None) -> list[Send]:
        return [Send(name, asked) for name in self.members] if asked else []

    def _known(self) -> Known:
        experts = self._program.expert_layers if self._program else ()
        loads = self._experts.loads(self.assignment)
        program = self._times.program(self._program, self.assignment)
        return Known(program, self._stages, self.settings.rates, experts, loads)

    def _halt(self, why: str, *, finished: bool = False) -> list[Send]:
        """End the program for all workers, and wait for its next start."""
        self.save(None)
        halt = Halt(why=why, status="finished" if finished else "lost")
        sends = [Send(name, one) for one in (halt, None) for name in self._workers]
        self._workers, self._missing = Workers(), set()
        self.assignment = self._program = self._stop_sent_s = None
        self._times.forget()
        self._experts.forget()
        self.planned.begin(self.now_s)
        self.phase, self._final = "forming", None
        return sends
