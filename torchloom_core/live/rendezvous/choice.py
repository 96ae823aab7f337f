"""Which assignment follows: the cheapest of those that are possible."""

from typing import NamedTuple

import msgspec

from torchloom_core.assignments.answers import after_loss, with_joiners
from torchloom_core.assignments.price import Program, Rates
from torchloom_core.live.rendezvous.holdings import Parts
from torchloom_core.wire.assignment import Assignment


class Known(NamedTuple):
    """What prices rest on; ``stages`` are those of a route with all its workers."""

    program: Program
    stages: int
    rates: Rates


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
        larger = with_standbys(present, held, standbys, known)
        return larger or msgspec.structs.replace(present, why="the same again")
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
