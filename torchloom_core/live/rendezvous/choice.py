"""Which assignment follows: the cheapest of those that are possible."""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from torchloom_core.assignments.answers import (
    Answer,
    after_loss,
    balanced,
    first_assignment,
    with_joiners,
)
from torchloom_core.assignments.expert_holders import Loads, placed, ranges
from torchloom_core.assignments.experts import worker_loads
from torchloom_core.assignments.price import Price, Program, Rates, step_s
from torchloom_core.live.rendezvous.holdings import Parts
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import ExpertLayer, Join

_WORTH = 0.9
"""Layers are moved between workers only if a step then takes at most this share of its time."""

_SAME = "the same again"


class Known(NamedTuple):
    """What prices rest on; ``stages`` are those of a route with all its workers."""

    program: Program
    stages: int
    rates: Rates
    expert_layers: tuple[ExpertLayer, ...] = ()
    loads: Loads = Loads()


def first_of(workers: Collection[str], join: Join, program: Program, standbys: int) -> Assignment:
    """Return the first assignment; the workers are taken by the numbers in their names.

    Raises
    ------
    AssignmentError
        If there are too few workers, or more than layers in a route.
    """
    return first_assignment(
        sorted(workers, key=lambda name: (len(name), name)),
        program,
        replicas=join.replicas,
        standbys=standbys,
        expert_layers=join.expert_layers,
    )


def following(
    present: Assignment,
    held: Parts,
    standbys: tuple[str, ...],
    known: Known,
    leaving: frozenset[str] = frozenset(),
) -> Assignment | None:
    """Return what follows, for workers that have left a generation; None if nothing can.

    Parameters
    ----------
    held
        By worker of the generation that is left, the layers that it holds.
    leaving
        Workers that are to have no part, if none has been lost.
    """
    if len(frozenset[int]().union(*held.values())) < present.layers:
        return None
    theirs = frozenset[int]().union(*(held.get(name, ()) for name in present.workers))
    if set(present.workers) <= held.keys() and len(theirs) == present.layers:
        better = (
            without(present, held, standbys, known, leaving)
            or with_standbys(present, held, standbys, known)
            or rebalanced(present, held, known)
            or with_experts_moved(present, known)
        )
        return better.assignment if better else msgspec.structs.replace(present, why=_SAME)
    present = msgspec.structs.replace(present, standbys=standbys)
    held = {**dict.fromkeys(standbys, frozenset[int]()), **held}
    found = after_loss(present, held.keys(), held, known.program, known.rates)
    return found[0].assignment if found else None


def with_standbys(
    present: Assignment, held: Parts, standbys: tuple[str, ...], known: Known
) -> Answer | None:
    """Return the assignment in which standbys have a part; None if that does not pay."""
    if not standbys:
        return None
    present = msgspec.structs.replace(present, standbys=standbys)
    held = {**dict.fromkeys(standbys, frozenset[int]()), **held}
    found = with_joiners(
        present, held.keys(), held, known.program, stages=known.stages, rates=known.rates
    )
    return found[0] if found and found[0].price.lost_gpu_s < 0 else None


def rebalanced(present: Assignment, held: Parts, known: Known) -> Answer | None:
    """Return the assignment with layers moved off slow workers; None if that does not pay."""
    if not known.program.is_measured:
        return None
    found = balanced(present, held, known.program, known.rates)
    if not found or found[0].price.lost_gpu_s >= 0:
        return None
    is_worth = found[0].price.step_s <= _WORTH * step_s(present, known.program)
    return found[0] if is_worth else None


def with_experts_moved(present: Assignment, known: Known) -> Answer | None:
    """Return the assignment with experts moved or copied again; None if that does not pay."""
    if not known.expert_layers:
        return None
    loads = known.loads if known.program.is_measured else Loads()
    now_s = step_s(present, known.program)
    holders, why = placed(
        present.experts,
        present.workers,
        known.expert_layers,
        loads,
        step_s=now_s,
        rates=known.rates,
    )
    if not why:
        return None
    moved = msgspec.structs.replace(present, experts=holders, why=why)
    saved_s = _expert_s(present, known, loads) - _expert_s(moved, known, loads)
    sent = _copied_bytes(present, moved, known.expert_layers)
    stall_s = known.rates.set_up_s + sent / known.rates.bytes_per_s
    return Answer(moved, Price(now_s - saved_s, 0.0, sent, stall_s, 0.0))


def _expert_s(assignment: Assignment, known: Known, loads: Loads) -> float:
    """Return the time in a step of the workers with the most work on experts."""
    if not loads.tokens:
        return 0.0
    parts = [slice(own.start, own.stop) for own in ranges(known.expert_layers)]
    workers = assignment.workers
    return loads.token_s * sum(
        max(worker_loads(loads.tokens[part], assignment.experts[part], workers), default=0.0)
        for part in parts
    )


def _copied_bytes(present: Assignment, moved: Assignment, layers: tuple[ExpertLayer, ...]) -> float:
    """Return the bytes of experts that get to workers which do not hold them."""
    sizes = [layer.expert_bytes for layer in layers for _ in range(layer.experts)]
    pairs = zip(present.experts, moved.experts, sizes, strict=True)
    return float(sum(size * len(set(after) - set(before)) for before, after, size in pairs))


def without(
    present: Assignment,
    held: Parts,
    standbys: tuple[str, ...],
    known: Known,
    leaving: frozenset[str],
) -> Answer | None:
    """Return the cheapest assignment in which these workers have no part; None if there is none.

    A layer or expert that only these workers hold has to stay where it is.
    """
    leaving = leaving & set(present.workers)
    if not leaving or any(held_by and leaving >= set(held_by) for held_by in present.experts):
        return None
    present = msgspec.structs.replace(present, standbys=standbys)
    left = {**dict.fromkeys(standbys, frozenset[int]()), **held}
    left = {name: layers for name, layers in left.items() if name not in leaving}
    found = after_loss(present, left.keys(), left, known.program, known.rates)
    if not found:
        return None
    names = ", ".join(sorted(leaving))
    why = f"without {names}: {found[0].assignment.why}"[:256]
    return Answer(msgspec.structs.replace(found[0].assignment, why=why), found[0].price)
