"""How ranks agree on a change: one rank's part, without I/O; docs/fence.md argues why it holds.

A change is offered to every rank from outside, in any order and at any time. Ahead of a step's own
collectives the ranks of a quorum count their ballots; where all ballots name the same change, it
is agreed, and whoever commits the step makes it with the commit. Nothing is remembered of a step
that was not committed: the next step asks again, whoever is in the quorum then.
"""

import secrets
from collections.abc import Iterable
from typing import NamedTuple, Self

import msgspec

from torchloom_core.wire.messages import FencedChange

NOTHING = 0

_NEUTRAL = 2**63 - 1
_ATTEMPTS = 2**22
"""Leaves 41 bits of an int64 to quorum ids; torchLoom's lighthouse counts them in milliseconds."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, in one set; of two changes the later has the larger number.

    Attributes
    ----------
    do : FencedChange, optional
        The operation, the same for all, which the fence does not look at.
    cause : str
        The verdict under which it was granted.
    """

    number: int
    do: FencedChange | None = None
    cause: str = ""


class Ballot(NamedTuple):
    """What a rank says ahead of a step.

    Attributes
    ----------
    offered : int
        The number of the change that it holds and can make, or ``NOTHING``.
    lineage : int
        See :class:`Fence`.
    attempt : int
        A number that no other ballot has; the largest is the name of this try of the step.
    undone : int
        See :class:`Fence`. It counts also of a rank whose ballot is withheld.
    """

    offered: int
    lineage: int
    attempt: int
    undone: int

    def withheld(self) -> "Ballot":
        """Return what counts of it where its rank is behind, and about to take a peer's state."""
        return self._replace(offered=_NEUTRAL, lineage=_NEUTRAL)

    def minima(self) -> tuple[int, ...]:
        """Return what the ranks reduce, element by element, to the least."""
        return (*self, *(x if x == _NEUTRAL else -x for x in self))


def read_minima(minima: tuple[int, ...]) -> tuple[Ballot, Ballot]:
    """Return the least and the largest of all ballots, field by field."""
    half = len(Ballot._fields)
    return Ballot(*minima[:half]), Ballot(*(-x for x in minima[half:]))


def tally(said: Iterable[tuple[int, Ballot]]) -> tuple[Ballot, Ballot]:
    """Return the least and the largest, field by field, of ballots and the steps of their ranks."""
    said = list(said)
    newest = max(step for step, _ in said)
    counted = [ballot if step == newest else ballot.withheld() for step, ballot in said]
    return read_minima(tuple(map(min, zip(*(b.minima() for b in counted), strict=True))))


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank knows of changes, between two events of its life.

    Attributes
    ----------
    lineage : int
        Which try of which step was the last one committed in the state that the rank has: the
        quorum it was in, and below that its attempt. Equal lineages are equal states.
    made : int
        The number of the last change that was made in that state.
    stands : bool
        Whether its values are still set, not those before it.
    undone : int
        The largest number of a change known to have failed on some rank.
    let_go : int
        The largest number known to be withdrawn.
    offered : Change, optional
        What it holds and has not made.
    ballots : int
        The attempt of its last ballot; begins anywhere, so that no two ranks count alike.
    voted : Change, optional
        What it held when it voted on the step under way, or its peer did.
    agreed, attempt : int
        What the ranks have agreed on for the step under way, and the name of this try.
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
        """What is made if the step under way is committed."""
        held = (self.offered, self.voted)
        return next((c for c in held if c and c.number == self.agreed), None)

    @property
    def is_short(self) -> bool:
        """Whether it was agreed on what this rank does not have: it must not commit the step."""
        return self.agreed != NOTHING and self.due is None

    @property
    def must_undo(self) -> bool:
        """Whether to set back the values of the last change made: look once all are heard."""
        return self.stands and NOTHING < self.made <= self.undone

    def offer(self, change: Change) -> Self:
        """Hold a change, in the place of an earlier one; what is over or not the latest is not."""
        if self.offered and change.number < self.offered.number:
            return self
        return msgspec.structs.replace(self, offered=change)._tidy()

    def withdraw(self, number: int) -> Self:
        """Never vote for changes up to this number again; what was agreed on stays agreed."""
        return msgspec.structs.replace(self, let_go=max(self.let_go, number))._tidy()

    def fail(self, number: int) -> Self:
        """Note that ``number`` could not be made here, where its values were set back at once."""
        failed = msgspec.structs.replace(self, undone=max(self.undone, number))
        return failed.undo() if failed.must_undo else failed._tidy()

    def undo(self) -> Self:
        """Note that the values of the last change made have been set back."""
        return msgspec.structs.replace(self, stands=False)._tidy()

    def lose(self) -> Self:
        """Note that the state here is none any more: half of it was changed.

        Its lineage is below that of every step that was ever committed, so any peer's counts more.
        """
        return msgspec.structs.replace(self, lineage=1 + secrets.randbelow(_ATTEMPTS - 1))

    def vote(self) -> tuple[Self, Ballot]:
        """Return what to say ahead of a step, which holds until the step is over."""
        held = self.offered.number if self.offered else NOTHING
        ballots = (self.ballots + 1) % _ATTEMPTS
        spoken = msgspec.structs.replace(self, ballots=ballots, voted=self.offered, agreed=NOTHING)
        return spoken, Ballot(held, self.lineage, ballots, self.undone)

    def count(self, least: Ballot, largest: Ballot) -> Self:
        """Take in the least and the largest of all ranks' ballots, field by field."""
        agrees = least.offered == largest.offered and least.offered > largest.undone
        return msgspec.structs.replace(
            self,
            undone=max(self.undone, largest.undone),
            agreed=least.offered if agrees else NOTHING,
            attempt=largest.attempt,
        )._tidy()

    def end_step(self, quorum_id: int | None) -> tuple[Self, Change | None]:
        """Forget the step; return what is to be made now if it was committed.

        ``quorum_id`` is where it was committed, None if it was not.
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
        """Take a peer's state, with its knobs, in the place of one's own, and hold what it holds.

        In a step under way, what was agreed on stays agreed: the peer has not made it yet.
        """
        held = [c for c in (peer.offered, peer.voted) if c and c.number > self.let_go]
        taken = msgspec.structs.replace(
            self,
            lineage=peer.lineage,
            made=peer.made,
            stands=peer.stands,
            undone=max(self.undone, peer.undone),
            let_go=max(self.let_go, peer.let_go),
            voted=next((c for c in held if c.number == self.agreed), self.voted),
        )._tidy()
        if peer.offered is None or (self.offered and self.offered.number >= peer.offered.number):
            return taken
        return taken.offer(peer.offered)

    def _tidy(self) -> Self:
        """Hold nothing that was made, withdrawn or undone."""
        over = max(self.made, self.undone, self.let_go)
        if self.offered is None or self.offered.number > over:
            return self
        return msgspec.structs.replace(self, offered=None)


def is_split(least: Ballot, largest: Ballot) -> bool:
    """Say whether not all ranks have the same state: nobody may reduce anything in this step."""
    return least.lineage < largest.lineage


def is_behind(own: Ballot, largest: Ballot) -> bool:
    """Say, where not all have the same state, whether a rank is to take that of a peer.

    It may count as many steps: it committed one that the others did not, and they have done it
    again without it. One whose ballot was withheld cannot know whose state it is about to have.
    """
    return own.lineage != largest.lineage
