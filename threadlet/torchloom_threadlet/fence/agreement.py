"""How ranks agree on a change: one rank's part, without I/O; docs/fence.md has the argument.

A change is offered to every rank from outside, in any order and at any time. Ahead of a step's own
collectives the ranks of a quorum count their ballots; if all ballots name the same change, it is
agreed, and the ranks that commit the step make the change with the commit. A step that is not
committed leaves no trace: the next step votes again, in its own quorum.
"""

import secrets
from collections.abc import Iterable
from typing import NamedTuple, Self

import msgspec

from torchloom_core.wire.operations import FencedChange

NOTHING = 0

_NEUTRAL = 2**63 - 1
_ATTEMPTS = 2**22
"""Leaves 41 bits of an int64 to quorum ids, which torchLoom's lighthouse counts in ms."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change to make; of two changes the later one has the larger number.

    ``do``: the operation, the same on all ranks; the fence does not interpret it.
    """

    number: int
    do: FencedChange | None = None
    cause: str = ""


class Ballot(NamedTuple):
    """A rank's vote ahead of a step.

    ``offered``: the number of the pending change that the rank can make, or ``NOTHING``.
    ``attempt``: a number that no other ballot has; the largest identifies this attempt of the step.
    ``undone``: see :class:`Fence`. Valid even if the ballot is withheld.
    """

    offered: int
    lineage: int
    attempt: int
    undone: int

    def withheld(self) -> "Ballot":
        """Return the ballot of a rank that is behind and about to load a peer's state."""
        return self._replace(offered=_NEUTRAL, lineage=_NEUTRAL)

    def minima(self) -> tuple[int, ...]:
        """Return the numbers whose minima the ranks compute, element by element."""
        return (*self, *(x if x == _NEUTRAL else -x for x in self))


def read_minima(minima: tuple[int, ...]) -> tuple[Ballot, Ballot]:
    """Return the least and the largest of all ballots, field by field."""
    half = len(Ballot._fields)
    return Ballot(*minima[:half]), Ballot(*(-x for x in minima[half:]))


def tally(votes: Iterable[tuple[int, Ballot]]) -> tuple[Ballot, Ballot]:
    """Return the least and the largest, field by field, of ballots and the steps of their ranks."""
    votes = list(votes)
    newest = max(step for step, _ in votes)
    counted = [ballot if step == newest else ballot.withheld() for step, ballot in votes]
    return read_minima(tuple(map(min, zip(*(b.minima() for b in counted), strict=True))))


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's knowledge of changes, between two events.

    ``lineage``: the attempt of the last step committed in the rank's state: its quorum in the upper
    bits, its number in the lower ones. Equal lineages are equal states.
    ``stands``: whether that change's values are still set, and not rolled back.
    ``undone``: the largest number of a change that failed on some rank.
    ``let_go``: the largest number of a withdrawn change.
    ``ballots``: the attempt of its last ballot; begins at random, so that ranks do not count alike.
    ``voted``: the pending change at the vote on the present step, of this rank or of its peer.
    ``agreed``, ``attempt``: the change agreed on for the present step, and this attempt of it.
    """

    lineage: int = NOTHING
    made: int = NOTHING
    stands: bool = True
    undone: int = NOTHING
    let_go: int = NOTHING
    offered: Change | None = None
    ballots: int = msgspec.field(default_factory=lambda: secrets.randbelow(_ATTEMPTS))
    voted: Change | None = None
    agreed: int = NOTHING
    attempt: int = NOTHING

    @property
    def due(self) -> Change | None:
        """The change to make if the present step is committed."""
        pending = (self.offered, self.voted)
        return next((c for c in pending if c and c.number == self.agreed), None)

    @property
    def is_short(self) -> bool:
        """Whether this rank lacks the agreed change: it must not commit the step."""
        return self.agreed != NOTHING and self.due is None

    @property
    def must_undo(self) -> bool:
        """Whether to roll back the last change made: check it once all ballots are counted."""
        return self.stands and NOTHING < self.made <= self.undone

    def offer(self, change: Change) -> Self:
        """Make a change the pending one, unless it is over or older than the present one."""
        if self.offered and change.number < self.offered.number:
            return self
        return msgspec.structs.replace(self, offered=change)._tidy()

    def withdraw(self, number: int) -> Self:
        """Never vote for changes up to this number again; what was agreed on stays agreed."""
        return msgspec.structs.replace(self, let_go=max(self.let_go, number))._tidy()

    def fail(self, number: int) -> Self:
        """Record that ``number`` failed here, where its values were set back at once."""
        failed = msgspec.structs.replace(self, undone=max(self.undone, number))
        return failed.undo() if failed.must_undo else failed._tidy()

    def undo(self) -> Self:
        """Record that the values of the last change made are rolled back."""
        return msgspec.structs.replace(self, stands=False)._tidy()

    def lose(self) -> Self:
        """Record that the state here is lost: it is half changed.

        Its lineage is below that of every committed step, so any peer's state takes precedence.
        """
        return msgspec.structs.replace(self, lineage=1 + secrets.randbelow(_ATTEMPTS - 1))

    def vote(self) -> tuple[Self, Ballot]:
        """Return the ballot ahead of a step, valid until the step is over."""
        pending = self.offered.number if self.offered else NOTHING
        ballots = (self.ballots + 1) % _ATTEMPTS
        voted = msgspec.structs.replace(self, ballots=ballots, voted=self.offered, agreed=NOTHING)
        return voted, Ballot(pending, self.lineage, ballots, self.undone)

    def count(self, least: Ballot, largest: Ballot) -> Self:
        """Take the least and the largest of all ranks' ballots, field by field."""
        agrees = least.offered == largest.offered and least.offered > largest.undone
        return msgspec.structs.replace(
            self,
            undone=max(self.undone, largest.undone),
            agreed=least.offered if agrees else NOTHING,
            attempt=largest.attempt,
        )._tidy()

    def end_step(self, quorum_id: int | None) -> tuple[Self, Change | None]:
        """Forget the step; return the change to make now if it was committed.

        ``quorum_id`` is the quorum that committed the step, None if it was not committed.
        """
        after = msgspec.structs.replace(self, voted=None, agreed=NOTHING)
        if quorum_id is None:
            return after, None
        after = msgspec.structs.replace(after, lineage=quorum_id * _ATTEMPTS + self.attempt)
        change = self.due
        if change is None:
            return after, None
        return msgspec.structs.replace(after, made=change.number, stands=True)._tidy(), change

    def inherit(self, peer: "Fence") -> Self:
        """Take over a peer's state, with its knobs and its pending change.

        In a step in progress an agreed change stays agreed: the peer has not made it yet.
        """
        pending = [c for c in (peer.offered, peer.voted) if c and c.number > self.let_go]
        taken = msgspec.structs.replace(
            self,
            lineage=peer.lineage,
            made=peer.made,
            stands=peer.stands,
            undone=max(self.undone, peer.undone),
            let_go=max(self.let_go, peer.let_go),
            voted=next((c for c in pending if c.number == self.agreed), self.voted),
        )._tidy()
        if peer.offered is None or (self.offered and self.offered.number >= peer.offered.number):
            return taken
        return taken.offer(peer.offered)

    def _tidy(self) -> Self:
        """Drop a pending change that was made, withdrawn or undone."""
        over = max(self.made, self.undone, self.let_go)
        if self.offered is None or self.offered.number > over:
            return self
        return msgspec.structs.replace(self, offered=None)


def is_split(least: Ballot, largest: Ballot) -> bool:
    """Return whether ranks differ in state: no rank may reduce anything in this step."""
    return least.lineage < largest.lineage


def is_behind(own: Ballot, largest: Ballot) -> bool:
    """Return whether a rank has to load a peer's state, if ranks differ in state.

    It may count as many steps: it committed one that the others repeated without it. A rank whose
    ballot was withheld does not know yet whose state it loads.
    """
    return own.lineage != largest.lineage
