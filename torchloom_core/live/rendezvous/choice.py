"""Which assignment follows: the cheapest of those that are possible."""

from typing import NamedTuple

import msgspec

from torchloom_core.assignments.answers import after_loss, balanced, with_joiners
from torchloom_core.assignments.expert_holders import Loads, placed
from torchloom_core.assignments.price import Program, Rates, step_s
from torchloom_core.live.rendezvous.holdings import Parts
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import ExpertLayer

_WORTH = 0.9
"""Layers are moved between workers only if a step then takes at most this share of its time."""


class Known(NamedTuple):
    """What prices rest on; ``stages`` are those of a route with all its workers."""

    program: Program
    stages: int
    rates: Rates
    expert_layers: tuple[ExpertLayer, ...] = ()
    loads: Loads = Loads()


def following(
    present: Assignment, held: Parts, standbys: tuple[str, ...], known: Known
) -> Assignment | None:
    """Return what follows, for workers that have left a generation; None if nothing can.

    Parameters
    ----------
    held
        By worker of the generation that is left, the layers that it holds.
    """
    if len(frozenset[int]().union(*held.values())) < present.layers:
        return None
    if set(present.workers) <= held.keys():
        better = with_standbys(present, held, standbys, known) or rebalanced(present, held, known)
        better = better or with_experts_moved(present, known)
        return better or msgspec.structs.replace(present, why="the same again")
    present = msgspec.structs.replace(present, standbys=standbys)
    held = {**dict.fromkeys(standbys, frozenset[int]()), **held}
    found = after_loss(present, held.keys(), held, known.program, known.rates)
    return found[0].assignment if found else None


def with_standbys(
    present: Assignment, held: Parts, standbys: tuple[str, ...], known: Known
) -> Assignment | None:
    """Return the assignment in which standbys have a part; None if that does not pay."""
    if not standbys:
        return None
    present = msgspec.structs.replace(present, standbys=standbys)
    held = {**dict.fromkeys(standbys, frozenset[int]()), **held}
    found = with_joiners(
        present, held.keys(), held, known.program, stages=known.stages, rates=known.rates
    )
    return found[0].assignment if found and found[0].price.lost_gpu_s < 0 else None


def rebalanced(present: Assignment, held: Parts, known: Known) -> Assignment | None:
    """Return the assignment with layers moved off slow workers; None if that does not pay."""
    if not known.program.is_measured:
        return None
    found = balanced(present, held, known.program, known.rates)
    if not found or found[0].price.lost_gpu_s >= 0:
        return None
    is_worth = found[0].price.step_s <= _WORTH * step_s(present, known.program)
    return found[0].assignment if is_worth else None


def with_experts_moved(present: Assignment, known: Known) -> Assignment | None:
    """Return the assignment with experts moved or copied again; None if that does not pay."""
    if not known.expert_layers:
        return None
    holders, why = placed(
        present.experts,
        present.workers,
        known.expert_layers,
        known.loads if known.program.is_measured else Loads(),
        step_s=step_s(present, known.program),
        rates=known.rates,
    )
    return msgspec.structs.replace(present, experts=holders, why=why) if why else None
