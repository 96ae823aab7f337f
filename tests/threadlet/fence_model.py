"""Everything that can happen to the fence in a run of a few ranks, explored breadth first.

The next event is anything that torchft allows. An offer or its withdrawal reaches a rank at any
time, in any order, more than once or never. Ranks between two steps form a quorum of all or some
live ranks, and the others continue later; a rank that is behind loads another one's state. A
collective has an outcome for a rank once all have taken part, and fails for any rank at any
time. The user's function raises as a change is made. A rank dies, and one starts. The lighthouse
restarts with new ids. A frozen rank is one to which nothing happens.

Ranks are alike, so a state does not identify them; of a step in progress it has what its ranks
have reduced. Beside the fence each rank has the true past of its state, which no rank knows.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import msgspec

from torchloom_threadlet.fence.agreement import (
    NOTHING,
    Ballot,
    Change,
    Fence,
    is_behind,
    is_split,
    read_minima,
)

IDLE, VOTED, WORKED = range(3)


class Truth(NamedTuple):
    """The true state of a rank, independent of its fence."""

    past: int = 0
    """The last attempt of a step committed in it, by ranks that were equal then."""
    knobs: tuple[int, ...] = ()
    """The changes whose values are set, in order."""


class Source(NamedTuple):
    """A peer's state at the beginning of a step."""

    fence: Fence
    truth: Truth


class Rank(NamedTuple):
    """A live rank: a replica group of its own."""

    fence: Fence
    step: int = 0
    truth: Truth = Truth()
    known: frozenset[int] = frozenset()
    """The changes whose withdrawal has reached it."""
    strange: frozenset[int] = frozenset()
    """Changes withdrawn before it started: they are never offered to it."""
    """Whether it was offered the change for a single rank."""
    at: int = IDLE
    round: int = 0
    """Its present step, or the last one that it committed and has not failed since."""
    ballot: Ballot | None = None
    heals: Source | None = None
    """The rank whose state it loads after counting, or before the commit if asynchronous."""


class Round(NamedTuple):
    """A step that some ranks attempt together."""

    number: int
    quorum_id: int
    size: int
    least: Ballot
    largest: Ballot
    worked: int = 0
    broken: bool = False
    """Whether a rank has left without its part of the step's own collectives."""
    truth: Truth | None = None
    """The states of the ranks that have reduced."""
    after: Truth | None = None
    """The states of the ranks that have committed."""


class Budget(NamedTuple):
    """How often rare events may still happen."""

    rounds: int = 0
    failures: int = 0
    evictions: int = 0
    deaths: int = 0
    births: int = 0
    withdrawals: int = 0
    raises: int = 0
    restarts: int = 0

    def less(self, what: str) -> "Budget":
        return self._replace(**{what: getattr(self, what) - 1})


class State(NamedTuple):
    """All live ranks, and the steps in progress."""

    ranks: tuple[Rank, ...]
    budget: Budget
    rounds: tuple[Round, ...] = ()
    count: int = 0
    """The number of attempted steps."""
    quorum: tuple[int, int] = (0, 0)
    """The last quorum's id and size."""
    withdrawn: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    """Withdrawn on all ranks and made by none: may not land any more."""


class Violation(Exception):
    """An event that must never happen, and the events before it."""


class Model:
    """The fence between ranks.

    Parameters
    ----------
    fence : type
        The protocol, or one with a bug.
    asynchronous : bool
        Whether a rank that is behind takes part in the step, and has its peer's state at the end.
    init_sync : bool
        Whether all ranks load one rank's state at step 0.
    changes : tuple of int
        The changes that may be offered.
    inherits : bool
        Whether a rank that loads a peer's state also takes over its knobs.
    lineage : bool
        Whether a rank with another last step is detected.
    """

    def __init__(
        self,
        fence: type[Fence] = Fence,
        *,
        asynchronous: bool = False,
        init_sync: bool = True,
        changes: tuple[int, ...] = (1, 2),
        inherits: bool = True,
        lineage: bool = True,
        withheld: Callable[[Ballot], Ballot] = Ballot.withheld,
    ) -> None:
        self._fence = fence(ballots=0)
        self._asynchronous = asynchronous
        self._init_sync = init_sync
        self._changes = tuple(Change(number=n, do=n) for n in changes)
        self._inherits = inherits
        self._lineage = lineage
        self._withheld = withheld

    def explore(self, ranks: int, budget: Budget, *, settling: int = 0) -> int:
        """Explore everything that can happen to so many ranks; return the number of states.

        From ``settling`` of the states it is checked that the run settles.
        """
        start = State((Rank(self._fence),) * ranks, budget)
        first = hash(start)
        came_from: dict[int, tuple[int, str]] = {first: (0, "")}
        waiting = deque([(first, start)])
        while waiting:
            digest, state = waiting.popleft()
            try:
                if settling and digest % settling == 0:
                    self._settle(state)
                for what, following in self._following(state):
                    reached = hash(following)
                    if reached not in came_from:
                        came_from[reached] = (digest, what)
                        waiting.append((reached, following))
            except Violation as violation:
                raise Violation(_story(came_from, digest, str(violation))) from None
        return len(came_from)

    def _settle(self, state: State) -> None:
        """Check that all make a change offered to all, once no rare event happens any more."""
        if not state.ranks:
            return
        state = state._replace(budget=Budget(rounds=9))
        while any(rank.at for rank in state.ranks):
            state = self._fails(state, next(rank for rank in state.ranks if rank.at))
        for _ in range(4):
            ranks = (r._replace(fence=r.fence.offer(Change(number=9))) for r in state.ranks)
            state = next(s for _, s in self._quorums(state._replace(ranks=_sorted(ranks))))
            while state.rounds:
                trying = (rank for rank in state.ranks if rank.at)
                state = next(s for rank in trying for _, s in self._goes_on(state, rank))
        if {(rank.fence.made, rank.truth) for rank in state.ranks} != {(9, state.ranks[0].truth)}:
            raise Violation("a change offered to all is not made without rare events")

    def _following(self, state: State) -> Iterator[tuple[str, State]]:
        budget = state.budget
        if budget.births:
            born = Rank(self._fence, strange=state.withdrawn)
            yield "one starts", _with(state, None, born, budget=budget.less("births"))
        if budget.restarts and state.quorum != (0, 0):
            yield (
                "the lighthouse restarts",
                state._replace(budget=budget.less("restarts"), quorum=(0, 0)),
            )
        if budget.withdrawals:
            for change in self._changes:
                if change.number not in state.withdrawn:
                    yield (
                        f"{change.number} is withdrawn",
                        state._replace(
                            budget=budget.less("withdrawals"),
                            withdrawn=state.withdrawn | {change.number},
                        ),
                    )
        for rank in dict.fromkeys(state.ranks):
            yield from self._messages(state, rank)
            if budget.deaths:
                dead = _with(state, rank, None, budget=budget.less("deaths"))
                yield "one dies", _over(_left(dead, rank))
            if rank.at:
                yield from self._goes_on(state, rank)
        if budget.rounds:
            yield from self._quorums(state)

    def _messages(self, state: State, rank: Rank) -> Iterator[tuple[str, State]]:
        for change in self._changes:
            n = change.number
            if n not in rank.strange:
                fence = rank.fence.offer(change)
                if fence != rank.fence:
                    offered = rank._replace(fence=fence)
                    yield f"one is offered {n}", _with(state, rank, offered)
            if n in state.withdrawn and n not in rank.known:
                after = rank._replace(fence=rank.fence.withdraw(n), known=rank.known | {n})
                yield f"the withdrawal of {n} reaches one", _over(_with(state, rank, after))

    def _quorums(self, state: State) -> Iterator[tuple[str, State]]:
        idle = [rank for rank in state.ranks if not rank.at]
        budget = state.budget.less("rounds")
        for size in range(len(idle), 0, -1):
            less = budget
            if size < len(state.ranks):
                if not budget.evictions:
                    return
                less = budget.less("evictions")
            for members in dict.fromkeys(combinations(idle, size)):
                most = max(rank.step for rank in members)
                for source in dict.fromkeys(rank for rank in members if rank.step == most):
                    formed = state._replace(budget=less)
                    yield f"a quorum of {size}", self._form(formed, members, source, source.fence)
                    if self._asynchronous and source.fence.offered:
                        # The peer gets an offer after its state was read, and votes for it.
                        before = msgspec.structs.replace(source.fence, offered=None)
                        stale = self._form(formed, members, source, before)
                        yield f"a quorum of {size}, and an offer during it", stale
                    if not any(rank.step < most for rank in members) and not self._is_first(most):
                        break

    def _is_first(self, step: int) -> bool:
        return self._init_sync and step == 0

    def _form(self, state: State, members: tuple[Rank, ...], source: Rank, sent: Fence) -> State:
        quorum_id, size = state.quorum
        stays = size == len(members) and all(rank.round == state.count for rank in members)
        quorum_id += not stays
        number = state.count + 1
        ranks = list(state.ranks)
        took = False
        spoken = []
        for rank in members:
            ranks.remove(rank)
            behind = rank.step < source.step
            if self._is_first(source.step):
                behind = rank != source or took
                took = took or rank == source
            joined = self._joined(rank, source._replace(fence=sent), behind, number)
            ranks.append(joined)
            spoken.append(joined.ballot.minima())
        minima = tuple(min(field) for field in zip(*spoken, strict=True))
        formed = Round(number, quorum_id, len(members), *read_minima(minima))
        return state._replace(
            ranks=_sorted(ranks),
            rounds=(*state.rounds, formed),
            count=number,
            quorum=(quorum_id, len(members)),
        )

    def _joined(self, rank: Rank, source: Rank, behind: bool, number: int) -> Rank:
        """Return the rank after its vote, and the rank whose state it loads if it is behind."""
        # No two ballots have one number: the model takes the step's for all of them.
        rank = rank._replace(at=VOTED, round=number)
        fence = msgspec.structs.replace(rank.fence, ballots=number - 1)
        fence, ballot = fence.vote()
        if rank.step < source.step:
            ballot = self._withheld(ballot)
        heals = Source(source.fence, source.truth) if behind else None
        return rank._replace(fence=fence, ballot=ballot, step=source.step, heals=heals)

    def _healed(self, rank: Rank, source: Rank | Source) -> Rank:
        knobs = source.truth.knobs if self._inherits else rank.truth.knobs
        truth = Truth(source.truth.past, knobs)
        return rank._replace(fence=rank.fence.inherit(source.fence), truth=truth, heals=None)

    def _goes_on(self, state: State, rank: Rank) -> Iterator[tuple[str, State]]:
        now = next(r for r in state.rounds if r.number == rank.round)
        if self._lineage and rank.at == VOTED and is_split(now.least, now.largest):
            behind = is_behind(rank.ballot, now.largest)
            yield "one sees that pasts differ", self._fails(state, rank, behind=behind)
            return
        if now.broken or state.budget.failures:
            less = state.budget if now.broken else state.budget.less("failures")
            failing = state._replace(budget=less)
            yield "one fails", self._fails(failing, rank)
            if rank.heals:
                # The user's loop continues with the next step without should_commit.
                yield "one fails and drops its peer's state", self._fails(failing, rank, drops=True)
        if rank.at == VOTED:
            yield "one counts the ballots", self._counts(state, rank, now)
        elif now.worked == now.size:
            yield from self._commits(state, rank, now)

    def _fails(
        self, state: State, rank: Rank, *, behind: bool = False, drops: bool = False
    ) -> State:
        after = rank if drops or not rank.heals else _undone(self._healed(rank, rank.heals))
        fence, change = after.fence.end_step(None)
        if change is not None:
            raise Violation(f"{change.number} is made by a rank that does not commit")
        after = after._replace(
            fence=fence, step=rank.step - behind, at=IDLE, round=0, ballot=None, heals=None
        )
        return _over(_left(_with(state, rank, after), rank))

    def _counts(self, state: State, rank: Rank, now: Round) -> State:
        worked = rank._replace(fence=rank.fence.count(now.least, now.largest), at=WORKED)
        if rank.heals and not self._asynchronous:
            worked = self._healed(worked, rank.heals)
            if worked.fence.is_short:
                return self._fails(state, rank)
        truth = now.truth
        if not worked.heals:
            worked = _undone(worked)
            if truth is not None and truth != worked.truth:
                raise Violation(f"gradients are reduced by {truth} and {worked.truth}")
            truth = worked.truth
        now = now._replace(worked=now.worked + 1, truth=truth)
        return _with(state, rank, worked, now=now)

    def _commits(self, state: State, rank: Rank, now: Round) -> Iterator[tuple[str, State]]:
        own = rank
        if rank.heals:
            own = _undone(self._healed(rank, rank.heals))
            if own.fence.is_short:
                yield "one lacks the agreed change", self._fails(state, rank)
                return
        fence, change = own.fence.end_step(now.quorum_id)
        knobs = own.truth.knobs
        if change is not None:
            if change.number in state.over:
                raise Violation(f"{change.number} is made, which was withdrawn from all")
            knobs = (*knobs, change.number)
        truth = Truth(now.number, knobs)
        if now.after not in (None, truth):
            raise Violation(f"a step ends as {now.after} and as {truth}")
        after = own._replace(fence=fence, step=own.step + 1, truth=truth, at=IDLE, ballot=None)
        now = now._replace(after=truth)
        yield "one commits", _over(_left(_with(state, rank, after, now=now), rank))
        if change is not None and change.do is not None and state.budget.raises:
            raised = after._replace(
                fence=fence.fail(change.number), truth=Truth(now.number, own.truth.knobs)
            )
            less = state.budget.less("raises")
            failed = _left(_with(state, rank, raised, now=now, budget=less), rank)
            yield "one commits and cannot make the change", _over(failed)


def _undone(rank: Rank) -> Rank:
    """Return the rank after it rolled back the last change, if it must."""
    if not rank.fence.must_undo:
        return rank
    truth = rank.truth._replace(knobs=rank.truth.knobs[:-1])
    return rank._replace(fence=rank.fence.undo(), truth=truth)


def _with(
    state: State,
    old: Rank | None,
    new: Rank | None,
    *,
    now: Round | None = None,
    budget: Budget | None = None,
) -> State:
    """Return the state with one rank, one step in progress, or the budget replaced."""
    ranks = list(state.ranks)
    if old is not None:
        ranks.remove(old)
    if new is not None:
        ranks.append(new)
    rounds = state.rounds
    if now is not None:
        rounds = tuple(now if r.number == now.number else r for r in rounds)
    return state._replace(ranks=_sorted(ranks), rounds=rounds, budget=budget or state.budget)


def _left(state: State, rank: Rank) -> State:
    """Return the state after a rank left its step, which breaks if its part is missing."""
    rounds = []
    for r in state.rounds:
        if r.number == rank.round and rank.at == VOTED:
            r = r._replace(broken=True)
        if any(other.at and other.round == r.number for other in state.ranks):
            rounds.append(r)
    return state._replace(rounds=tuple(rounds))


def _over(state: State) -> State:
    """Record which withdrawn changes no rank may make any more."""
    gone = {
        n
        for n in state.withdrawn - state.over
        if all(n in rank.known for rank in state.ranks) and not any(_has(r, n) for r in state.ranks)
    }
    return state._replace(over=state.over | gone) if gone else state


def _has(rank: Rank, number: int) -> bool:
    """Return whether a rank has made a change, or is in a step that may end with it."""
    voted = rank.fence.voted.number if rank.fence.voted else NOTHING
    under_way = rank.at and number in (rank.fence.agreed, voted)
    return bool(under_way) or rank.fence.made >= number


def _sorted(ranks) -> tuple[Rank, ...]:
    return tuple(sorted(ranks, key=hash))


def _story(came_from: dict[int, tuple[int, str]], digest: int, end: str) -> str:
    lines = [end]
    while digest:
        digest, what = came_from[digest]
        lines.append(what)
    return "\n".join(reversed(lines))
