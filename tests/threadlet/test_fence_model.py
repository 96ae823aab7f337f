"""The fence is correct in every run of a few ranks, and the model finds planted bugs."""

import msgspec
import pytest

from tests.threadlet.fence_model import Budget, Model, Violation
from torchloom_threadlet.fence.agreement import NOTHING, Change, Fence

replace = msgspec.structs.replace
pytestmark = pytest.mark.slow


class CommitsWithoutAllVotes(Fence, frozen=True, kw_only=True):
    def count(self, least, largest):
        own = self.voted.number if self.voted else NOTHING
        return replace(super().count(least, largest), agreed=own)


class MakesItAStepLate(Fence, frozen=True, kw_only=True):
    late: Change | None = None

    def end_step(self, quorum_id):
        after, change = super().end_step(quorum_id)
        if quorum_id is None:
            return after, None
        return replace(after, late=change), self.late


class VotesForLongerThanAStep(Fence, frozen=True, kw_only=True):
    def end_step(self, quorum_id):
        after, change = super().end_step(quorum_id)
        stale = {"voted": self.voted, "agreed": self.agreed} if quorum_id is None else {}
        return replace(after, **stale), change

    def vote(self):
        after, ballot = super().vote()
        stale = {"voted": self.voted, "agreed": self.agreed} if self.agreed else {}
        return replace(after, **stale), ballot

    def count(self, least, largest):
        counted = super().count(least, largest)
        return replace(counted, agreed=counted.agreed or self.agreed)


class TakesALaterOfferForTheVote(Fence, frozen=True, kw_only=True):
    @property
    def due(self):
        return self.offered if self.agreed else None


class VotesForWhatItHasLetGo(Fence, frozen=True, kw_only=True):
    def withdraw(self, number):
        return self


class KnowsItsPastByTheQuorumAlone(Fence, frozen=True, kw_only=True):
    def count(self, least, largest):
        return replace(super().count(least, largest), attempt=0)


class KeepsAnUndoToItself(Fence, frozen=True, kw_only=True):
    own: int = NOTHING

    def fail(self, number):
        return replace(super().fail(number), own=number)

    def vote(self):
        voted, ballot = super().vote()
        return voted, ballot._replace(undone=self.own)


class UndoesNothing(Fence, frozen=True, kw_only=True):
    @property
    def must_undo(self):
        return False


class CommitsWhatItHasNot(Fence, frozen=True, kw_only=True):
    @property
    def is_short(self):
        return False


@pytest.mark.parametrize(
    ("ranks", "budget"),
    [
        (2, Budget(rounds=3, failures=1, evictions=1, withdrawals=1)),
        (2, Budget(rounds=3, failures=1, evictions=1, raises=1, restarts=1)),
        (2, Budget(rounds=2, failures=1, deaths=1, births=1, raises=1)),
    ],
)
def test_the_fence_holds_whatever_happens(ranks, budget):
    assert Model().explore(ranks, budget, settling=50) > 10_000


def test_the_fence_holds_where_a_joiner_has_its_peers_state_only_at_the_end_of_a_step():
    budget = Budget(rounds=3, failures=1, evictions=1, births=1, raises=1)
    assert Model(asynchronous=True, changes=(1,)).explore(2, budget, settling=50) > 10_000


def test_the_fence_holds_where_a_joiner_knows_of_a_withdrawal_and_its_peer_does_not():
    budget = Budget(rounds=3, failures=1, evictions=1, withdrawals=1)
    assert Model(asynchronous=True, changes=(1,)).explore(2, budget, settling=50) > 1_000


class InheritsWhatItHasLetGo(Fence, frozen=True, kw_only=True):
    def inherit(self, peer):
        return replace(Fence.inherit(replace(self, let_go=NOTHING), peer), let_go=self.let_go)


def test_a_joiner_that_makes_a_withdrawn_change_with_its_peer_is_found():
    budget = Budget(rounds=3, failures=1, evictions=1, withdrawals=1)
    with pytest.raises(Violation, match="which was withdrawn from all"):
        Model(InheritsWhatItHasLetGo, changes=(1,)).explore(2, budget)


def test_the_fence_holds_among_three_ranks_of_which_one_cannot_make_a_change_and_dies():
    budget = Budget(rounds=3, failures=1, evictions=1, deaths=1, raises=1)
    assert Model(changes=(1,)).explore(3, budget, settling=50) > 10_000


@pytest.mark.parametrize(
    ("bug", "ranks", "budget", "changes"),
    [
        (CommitsWithoutAllVotes, 2, Budget(rounds=1), (1,)),
        (MakesItAStepLate, 2, Budget(rounds=3, failures=1), (1,)),
        (VotesForLongerThanAStep, 2, Budget(rounds=2, failures=2), (1, 2)),
        (TakesALaterOfferForTheVote, 2, Budget(rounds=1), (1, 2)),
        (VotesForWhatItHasLetGo, 2, Budget(rounds=1, withdrawals=1), (1,)),
        (KnowsItsPastByTheQuorumAlone, 2, Budget(3, failures=1, evictions=1, restarts=1), (1,)),
        (KeepsAnUndoToItself, 3, Budget(rounds=3, failures=1, deaths=1, raises=1), (1,)),
        (UndoesNothing, 2, Budget(rounds=2, raises=1), (1,)),
    ],
)
def test_a_bug_in_the_protocol_is_found(bug, ranks, budget, changes):
    with pytest.raises(Violation):
        Model(bug, changes=changes).explore(ranks, budget)


def without_what_is_undone(ballot):
    return ballot.withheld()._replace(undone=NOTHING)


MODEL_OF_SILENCE = Model(changes=(1,), asynchronous=True, withheld=without_what_is_undone)


def test_an_abstaining_rank_that_does_not_report_an_undo_is_found():
    budget = Budget(rounds=3, evictions=1, raises=1)
    with pytest.raises(Violation, match="a step ends as"):
        MODEL_OF_SILENCE.explore(2, budget)


def test_a_joiner_that_commits_without_the_agreed_change_is_found():
    budget = Budget(rounds=2, births=1)
    with pytest.raises(Violation, match="a step ends as"):
        Model(CommitsWhatItHasNot, asynchronous=True).explore(1, budget)


def test_a_joiner_with_a_scripts_default_knobs_is_found():
    with pytest.raises(Violation, match="gradients are reduced"):
        Model(inherits=False).explore(1, Budget(rounds=2, births=1))


def test_ranks_with_equal_step_counts_and_different_pasts_are_found():
    with pytest.raises(Violation, match="gradients are reduced"):
        Model(lineage=False).explore(2, Budget(rounds=3, failures=1, evictions=1))
