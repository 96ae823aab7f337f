"""The answers to the loss of an expert's host that are compared."""

from typing import NamedTuple

from experiments.experts.driver import Decide, Reports, spread
from torchloom_core.assignments.experts import Placed, after_loss, mirrors
from torchloom_core.wire.assignment import Assignment

MIRROR_EVERY = 10
"""Steps between two copies of an expert in a peer's memory."""


class Arm(NamedTuple):
    """An answer.

    Attributes
    ----------
    copies : int
        Workers that hold each expert.
    mirror_every : int
        0: no copies in memory.
    """

    name: str
    copies: int
    mirror_every: int
    decide: Decide


def _left(present: Assignment, reports: Reports, lost: set[str]) -> Placed:
    del reports
    return after_loss(present.experts, lost)


def _left_or_mirrored(present: Assignment, reports: Reports, lost: set[str]) -> Placed:
    peers = mirrors(present.experts, present.workers)
    there = tuple(
        peer if peer in reports and number in reports[peer]["mirrored"] else ""
        for number, peer in enumerate(peers)
    )
    return after_loss(present.experts, lost, there)


MASKED = Arm("masked", 1, 0, _left)
PEER = Arm("peer's memory", 1, MIRROR_EVERY, _left_or_mirrored)
REPLICA = Arm("replica", 2, 0, _left)
ARMS = (MASKED, PEER, REPLICA)


def holders(arm: Arm) -> Placed:
    """Return the experts' first holders."""
    return spread(arm.copies)
