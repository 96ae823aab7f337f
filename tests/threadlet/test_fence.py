"""One rank's part of the fence, for any input."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from torchloom_threadlet.fence.agreement import (
    NOTHING,
    Ballot,
    Change,
    Fence,
    is_behind,
    is_split,
    read_minima,
)

NUMBERS = st.integers(1, 6)
CHANGES = st.builds(Change, number=NUMBERS, do=st.none())


def abstain(fence):
    """Vote as a rank whose ballot is withheld because it is about to load a peer's state."""
    spoken, ballot = fence.vote()
    return spoken, ballot.withheld()


def reduced(*ballots):
    minima = zip(*(ballot.minima() for ballot in ballots), strict=True)
    return read_minima(tuple(min(field) for field in minima))


class OneRank(RuleBasedStateMachine):
    """A rank and a peer, with any input at any time."""

    def __init__(self):
        super().__init__()
        self.fence, self.peer = Fence(), Fence()
        self.ballot = None
        self.withdrawn = 0

    def take(self, fence):
        assert fence.undone >= self.fence.undone
        assert fence.let_go >= self.fence.let_go
        self.fence = fence

    @rule(change=CHANGES)
    def is_offered(self, change):
        self.take(self.fence.offer(change))
        assert self.fence.offer(change) == self.fence

    @rule(change=CHANGES)
    def its_peer_is_offered(self, change):
        self.peer = self.peer.offer(change)

    @rule(number=NUMBERS)
    def hears_of_a_withdrawal(self, number):
        self.take(self.fence.withdraw(number))
        self.withdrawn = max(self.withdrawn, number)

    @rule(number=NUMBERS)
    def its_peer_fails_and_makes_anew(self, number):
        self.peer = self.peer.fail(number)

    @precondition(lambda self: self.ballot is None)
    @rule(abstains=st.booleans())
    def speaks(self, abstains):
        fence, self.ballot = abstain(self.fence) if abstains else self.fence.vote()
        self.take(fence)
        if not abstains and self.ballot.offered:
            over = max(self.withdrawn, fence.made, fence.undone)
            assert self.ballot.offered == fence.voted.number > over

    @precondition(lambda self: self.ballot is not None)
    @rule(committed=st.booleans())
    def ends_a_step_with_its_peer(self, committed):
        before, peer = self.fence, self.peer
        peer, other = peer.vote()
        least, largest = reduced(self.ballot, other)
        self.take(self.fence.count(least, largest))
        peer = peer.count(least, largest)
        assert self.fence.agreed == peer.agreed
        if self.ballot.lineage != before.lineage:  # it abstained
            self.take(self.fence.inherit(self.peer))
            assert not self.fence.is_short or self.fence.agreed <= self.fence.let_go
        committed = committed and not is_split(least, largest) and not self.fence.is_short
        fence, change = self.fence.end_step(7 if committed else None)
        self.peer, other_change = peer.end_step(7 if committed else None)
        assert (change and change.number) == (other_change and other_change.number)
        assert (fence.voted, fence.agreed) == (None, NOTHING)
        if change is not None:
            assert committed
            assert fence.made == change.number > max(before.made, largest.undone)
        if committed:
            assert fence.lineage == self.peer.lineage
        self.take(fence)
        self.ballot = None

    @precondition(lambda self: self.ballot is None)
    @rule()
    def takes_its_peers_state(self):
        self.take(self.fence.inherit(self.peer))
        for field in ("lineage", "made", "stands"):
            assert getattr(self.fence, field) == getattr(self.peer, field)

    @precondition(lambda self: self.fence.must_undo)
    @rule()
    def undoes(self):
        self.take(self.fence.undo())
        assert not self.fence.must_undo

    @precondition(lambda self: self.ballot is None and self.fence.made)
    @rule()
    def cannot_make_what_it_was_to(self):
        self.take(self.fence.fail(self.fence.made))
        assert not self.fence.must_undo

    @invariant()
    def holds_nothing_that_is_over(self):
        fence = self.fence
        if fence.offered is not None:
            assert fence.offered.number > max(fence.made, fence.undone, self.withdrawn)

    @invariant()
    def is_the_same_after_a_journey(self):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(self.fence), type=Fence) == self.fence


TestOneRank = OneRank.TestCase


@given(offers=st.lists(NUMBERS), withdrawals=st.lists(NUMBERS), order=st.randoms())
def test_the_pending_change_does_not_depend_on_the_order_of_messages(offers, withdrawals, order):
    fence = Fence()
    messages = [("offer", Change(number=n)) for n in offers] * 2
    messages += [("withdraw", n) for n in withdrawals]
    order.shuffle(messages)
    for verb, what in messages:
        fence = getattr(fence, verb)(what)
    latest = max(offers, default=0)
    expected = Change(number=latest) if latest > max(withdrawals, default=0) else None
    assert fence.offered == expected


@given(
    st.lists(
        st.builds(Ballot, *(st.integers(0, 2**62) for _ in Ballot._fields)),
        min_size=1,
        max_size=4,
    )
)
def test_one_min_reduction_yields_the_least_and_the_largest(ballots):
    least, largest = reduced(*ballots, abstain(Fence())[1]._replace(attempt=0, undone=0))
    for field in ("offered", "lineage"):
        values = [getattr(ballot, field) for ballot in ballots]
        assert (getattr(least, field), getattr(largest, field)) == (min(values), max(values))
    assert largest.undone == max(ballot.undone for ballot in ballots)
    assert all(-(2**63) <= x < 2**63 for ballot in ballots for x in ballot.minima())


def test_if_all_abstain_there_is_no_agreement_and_no_split():
    fence, ballot = abstain(Fence().offer(Change(number=1)))
    least, largest = reduced(ballot, abstain(Fence())[1])
    assert fence.count(least, largest).agreed == NOTHING
    assert not is_split(least, largest)


def test_a_rank_that_abstains_while_lineages_differ_loads_a_state_again():
    _, old = Fence(lineage=3).vote()
    _, new = Fence(lineage=5).vote()
    _, joiner = abstain(Fence())
    least, largest = reduced(old, new, joiner)
    assert is_split(least, largest)
    assert [is_behind(ballot, largest) for ballot in (old, new, joiner)] == [True, False, True]


def test_a_joiner_without_the_agreed_change_lacks_it():
    spoken, ballot = abstain(Fence().offer(Change(number=3)))
    _, other = Fence().offer(Change(number=2)).vote()
    counted = spoken.count(*reduced(ballot, other))
    assert counted.is_short
    assert counted.inherit(Fence()).is_short
    assert not counted.inherit(Fence().offer(Change(number=2))).is_short


@pytest.mark.parametrize("quorum_id", [1, 2**40])
def test_a_lineage_fits_into_a_ballot(quorum_id):
    fence, ballot = Fence().vote()
    fence, _ = fence.count(*reduced(ballot)).end_step(quorum_id)
    assert max(fence.vote()[1].minima()) < 2**63 - 1


def agree_alone(fence, quorum_id=1):
    fence, ballot = fence.vote()
    return fence.count(*reduced(ballot)).end_step(quorum_id)


def test_a_later_quorum_has_a_larger_lineage_whatever_the_attempts():
    early, _ = agree_alone(Fence(ballots=4_000_000), 7)
    late, _ = agree_alone(Fence(ballots=0), 8)
    assert early.lineage < late.lineage


def test_a_change_after_an_undone_one_can_be_undone():
    undone = Fence(made=1).fail(1)
    made, _ = agree_alone(undone.offer(Change(number=2)))
    assert made.stands
    assert not made.must_undo
    assert made.count(*reduced(Ballot(0, 0, 0, 2))).must_undo


def test_a_healed_rank_has_the_change_its_peer_voted_for_despite_a_later_offer():
    peer, other = Fence().offer(Change(number=2)).vote()
    spoken, ballot = abstain(Fence())
    counted = spoken.count(*reduced(ballot, other))
    assert counted.inherit(peer.offer(Change(number=5))).due == Change(number=2)
