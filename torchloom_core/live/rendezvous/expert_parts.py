"""What workers have said of the program's experts, and the holders that follow."""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from torchloom_core.assignments.expert_holders import Loads, next_holders, ranges, restored
from torchloom_core.assignments.experts import worker_loads
from torchloom_core.live.rendezvous.holdings import Holdings
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import NO_EXPERTS, ExpertLayer, ExpertState, Mirror

_SHOWN = 256
_NAMED = 8


class ExpertStates:
    """The last message of each worker on the experts."""

    def __init__(self) -> None:
        self._by_worker: dict[str, ExpertState] = {}

    def take(self, worker: str, state: ExpertState) -> None:
        """Take what a worker has said."""
        if state != NO_EXPERTS:
            self._by_worker[worker] = state

    def loads(self, present: Assignment | None) -> Loads:
        """Return the experts' tokens, and what a token costs on the usual worker."""
        states = self._of(present)
        tokens = max((state.tokens for state in states.values()), key=sum, default=())
        if present is None or not tokens or len(tokens) != len(present.experts):
            return Loads()
        workers = present.workers
        own = dict(zip(workers, worker_loads(tokens, present.experts, workers), strict=True))
        costs = [s.seconds / own[w] for w, s in states.items() if s.seconds and own[w]]
        return Loads(tokens, median(costs) if costs else 0.0)

    def mirrors(self, present: Assignment | None) -> dict[str, tuple[Mirror, ...]]:
        """Return which experts are in the memory of which worker."""
        return {name: s.mirrors for name, s in self._of(present).items() if s.mirrors}

    def forget(self) -> None:
        """Forget all: another program begins."""
        self._by_worker = {}

    def _of(self, present: Assignment | None) -> dict[str, ExpertState]:
        names = present.workers if present is not None else ()
        return {name: self._by_worker[name] for name in names if name in self._by_worker}


def with_mirrors(has: Holdings) -> tuple[Holdings, dict[int, tuple[str, int]]]:
    """Return what workers hold once lost experts are taken from the memory of others.

    Also those experts, each with the worker and the step of its state.
    """
    back = restored(has.experts, has.mirrors)
    more: dict[str, set[int]] = {}
    for number, (worker, _) in back.items():
        more.setdefault(worker, set()).add(number)
    experts = {name: own | more.get(name, set()) for name, own in has.experts.items()}
    return has._replace(experts=experts), back


def with_experts(
    chosen: Assignment, has: Holdings, back: Mapping[int, tuple[str, int]]
) -> Assignment:
    """Return the assignment with the experts' holders, and what became of lost experts."""
    if not chosen.experts:
        return chosen
    holders = next_holders(chosen.experts, chosen.workers, has.experts)
    reasons = [chosen.why] if chosen.why else []
    for worker in dict.fromkeys(worker for worker, _ in back.values()):
        own = [number for number, (name, _) in back.items() if name == worker]
        age = max(has.committed - back[number][1] for number in own)
        reasons.append(f"{_named(own)} from {worker}'s memory, {age} steps old")
    if lost := [number for number, names in enumerate(holders) if not names]:
        reasons.append(f"{_named(lost)} left out")
    return msgspec.structs.replace(chosen, experts=holders, why="; ".join(reasons)[:_SHOWN])


def loses_experts(chosen: Assignment, has: Holdings) -> bool:
    """Return whether experts are left out because those that have them have no part."""
    held = with_mirrors(has)[0].experts
    there = frozenset[int]().union(*held.values())
    holders = next_holders(chosen.experts, chosen.workers, held)
    return any(number in there and not names for number, names in enumerate(holders))


def why_no_expert(assignment: Assignment, layers: Sequence[ExpertLayer]) -> str:
    """Return in one line why a program cannot go on without its experts; "" if it can."""
    for numbers in ranges(layers):
        if numbers and not any(assignment.experts[number] for number in numbers):
            return (
                f"{_named(numbers)}: all workers that held them have ended; "
                "start again from a checkpoint"
            )
    return ""


def _named(numbers: Sequence[int]) -> str:
    names = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
    return f"expert{'s' if len(numbers) > 1 else ''} {names}"
