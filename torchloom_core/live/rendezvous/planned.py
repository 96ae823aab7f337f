"""The next generation for which the members are asked to vote, as no death calls for it.

A client, such as a Weaver, may decide on it; while none does, whatever makes steps faster is done.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from torchloom_core.assignments.answers import Answer
from torchloom_core.assignments.checking import copies
from torchloom_core.assignments.price import step_s
from torchloom_core.floor.errors import AssignmentError
from torchloom_core.live.rendezvous.choice import (
    Known,
    following,
    rebalanced,
    with_experts_moved,
    with_standbys,
    without,
)
from torchloom_core.live.rendezvous.expert_parts import loses_experts
from torchloom_core.live.rendezvous.holdings import Holdings, Parts, everything
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Regroup
from torchloom_core.wire.planned_changes import Answered, Change, Offer

_LOOK_S = 5.0  # between two looks at the measured times
_DECIDES_S = 5.0
"""How long a client's decisions are waited for after its last message."""

_NONE = Answered()


@dataclass(slots=True)
class Planned:
    """What is asked for in the present generation: one change at a time.

    Attributes
    ----------
    asked_for : int
        The next generation, if members have been asked to vote for it; else 0.
    offer : Offer, optional
        What a client may decide on.
    left_out : frozenset of str
        Workers that are to have no part.
    answered : Answered
        What became of the last change that a client has asked for.
    cause : str
        Why the last generation ended; empty if that was planned.
    """

    asked_for: int = 0
    offer: Offer | None = None
    left_out: frozenset[str] = frozenset()
    answered: Answered = _NONE
    cause: str = ""
    _wanted: Assignment | None = None
    _failed: str = ""
    _retiring: frozenset[str] = frozenset()
    _looked_s: float = 0.0
    _decided_until_s: float = float("-inf")

    @property
    def changes(self) -> tuple[object, ...]:
        """What is different after a change that a client is to see at once."""
        return self.asked_for, self.offer, self.left_out, self.answered

    def decided_by_client(self, now_s: float) -> None:
        """Take note that a client decides."""
        self._decided_until_s = now_s + _DECIDES_S

    def begin(self, now_s: float, taking_part: Iterable[str] = ()) -> None:
        """Begin a generation: nothing is asked for."""
        self.asked_for, self.offer, self._looked_s, self._wanted = 0, None, now_s, None
        if needed := self.left_out.intersection(taking_part):
            why = f"no assignment without {', '.join(sorted(needed))} holds all layers"
            self._settle("refused", why)
        self.left_out -= needed
        self._settle("done", "")
        self.cause, self._failed = self._failed, ""

    def fail(self, why: str) -> None:
        """Take note that the generation ends in another way than by the change asked for."""
        self._settle("refused", why)
        self._failed = why[:256]

    def take_in(
        self,
        present: Assignment,
        standbys: tuple[str, ...],
        now_s: float,
        known: Callable[[], Known],
    ) -> Regroup | None:
        """Return what to ask for, if a standby would make steps faster."""
        if self.asked_for or not standbys:
            return None
        held, program = everything(present), known()
        return self._choose(
            present, with_standbys(present, held, standbys, program), now_s, program
        )

    def look(
        self,
        present: Assignment,
        standbys: tuple[str, ...],
        now_s: float,
        known: Callable[[], Known],
    ) -> Regroup | None:
        """Return what to ask for, if an offer still stands or moving layers would pay."""
        if self.asked_for or now_s - self._looked_s < _LOOK_S:
            return None
        self._looked_s, had, self.offer = now_s, self.offer, None
        held, program = everything(present), known()
        better = with_standbys(present, held, standbys, program) if had else None
        better = better or rebalanced(present, held, program)
        better = better or with_experts_moved(present, program)
        return self._choose(present, better, now_s, program)

    def change(
        self,
        change: Change,
        present: Assignment | None,
        workers: Collection[str],
        standbys: tuple[str, ...],
        known: Callable[[], Known],
    ) -> Regroup | None:
        """Return what to ask for as a client has decided; None if it is refused.

        Without a ``present`` assignment workers are between two generations.
        """
        if present is None or self.asked_for:
            return self._refuse(change, "workers are between two generations")
        if change.generation != present.generation:
            why = f"generation {change.generation} is over, {present.generation} is present"
            return self._refuse(change, why)
        if unknown := sorted(set(change.without).difference(workers)):
            return self._refuse(change, f"{unknown[0]}: no such worker")
        left_out, program = frozenset(change.without), known()
        ready = tuple(name for name in standbys if name not in left_out)
        held = everything(present)
        if left_out & set(present.workers):
            better = without(present, held, ready, program, left_out)
            why = f"no assignment without {', '.join(sorted(left_out))} holds all layers"
        else:
            better = (
                with_standbys(present, held, ready, program)
                or rebalanced(present, held, program)
                or with_experts_moved(present, program)
            )
            why = "no other assignment makes steps faster"
        if better is None:
            return self._refuse(change, why)
        self.left_out, self.answered = left_out, Answered(id=change.id, state="asked")
        return self._ask(present, better.assignment.why, better.assignment)

    def retire(self, worker: str, present: Assignment | None) -> Regroup | None:
        """Return what to ask for, as a worker is to leave with the commit of a step."""
        self._retiring |= {worker}
        self.left_out |= {worker}
        if present is None or self.asked_for or worker not in present.workers:
            return None
        return self._ask(present, f"{worker} leaves")

    def comes(self, worker: str) -> None:
        """Let a worker that has started again have a part."""
        self.left_out -= {worker}
        self._retiring -= {worker}

    def following(
        self, present: Assignment, has: Holdings, standbys: tuple[str, ...], known: Known
    ) -> Assignment | None:
        """Return what follows, for workers that have left a generation; None if nothing can.

        If all are there, that is what they were asked for. Workers that are to have no part get
        one only if the program cannot go on without, or would lose experts.
        """
        wanted, held = self._wanted, has.layers
        leaving = self.left_out if self.answered.state == "asked" else self._retiring
        ready = tuple(name for name in standbys if name not in self.left_out)
        is_possible = wanted is not None and self._is_possible(wanted, present, held, standbys)
        if wanted is not None and is_possible and not loses_experts(wanted, has):
            return wanted
        found = following(present, held, ready, known, leaving)
        if found is not None and not loses_experts(found, has):
            return found
        return following(present, held, standbys, known) or found

    def _is_possible(
        self, wanted: Assignment, present: Assignment, held: Parts, standbys: tuple[str, ...]
    ) -> bool:
        """Return whether all workers are there, and none of them is to have no part since then."""
        there = set(held).union(standbys)
        if not there.issuperset({*present.workers, *wanted.workers}):
            return False
        if self._retiring.intersection(wanted.workers):
            return False
        try:
            copies(wanted, held)
        except AssignmentError:
            return False
        return True

    def _choose(
        self, present: Assignment, better: Answer | None, now_s: float, known: Known
    ) -> Regroup | None:
        if better is None:
            return None
        present_s = step_s(present, known.program)
        is_faster = better.price.step_s < present_s
        if now_s >= self._decided_until_s or not is_faster:  # a lost copy is made again at once
            return self._ask(present, better.assignment.why, better.assignment)
        self.offer = Offer(
            why=better.assignment.why,
            step_s=better.price.step_s,
            present_step_s=present_s,
            stall_s=better.price.stall_s,
            copied_bytes=better.price.copied_bytes,
        )
        return None

    def _refuse(self, change: Change, why: str) -> Regroup | None:
        self.answered = Answered(id=change.id, state="refused", why=why[:256])
        return None

    def _ask(self, present: Assignment, why: str, wanted: Assignment | None = None) -> Regroup:
        self.asked_for, self.offer, self._wanted = present.generation + 1, None, wanted
        return Regroup(next=self.asked_for, why=why)

    def _settle(self, state: str, why: str) -> None:
        if self.answered.state == "asked":
            self.answered = Answered(id=self.answered.id, state=state, why=why[:256])  # type: ignore[arg-type]
