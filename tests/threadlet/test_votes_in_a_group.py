"""The ranks of one group have the same outcome of a vote, or none has any."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.threadlet.bare_manager import BareManager
from torchloom_threadlet.adapters.torchft import fenced_steps
from torchloom_threadlet.fence.agreement import Change, Fence
from torchloom_threadlet.torchft import attach

WAIT_S = 20


class Client:
    """Answers a quorum request with this group and, optionally, another group's handle."""

    def __init__(self, rank, other):
        self._rank, self._other = rank, other

    def _quorum(self):
        handles = [self._rank._pg.get_reconfigure_handle()]
        return SimpleNamespace(reconfigure_handles=handles + ([self._other] if self._other else []))


class Rank(BareManager):
    _group_world_size = 2
    _timeout = timedelta(seconds=WAIT_S)
    _healing = False
    _quorum_id = 1

    def __init__(self, *, fence=None, other=""):
        super().__init__()
        self._client = Client(self, other)
        self._step = 5
        self.error = None
        self.loom = attach()
        self.loom.manage(self)
        self.changes = self.loom._worker.changes
        self.changes._fence = fence or Fence(offered=Change(number=1))

    def start_quorum(self):
        self.error = None
        self._client._quorum()

    def wait_quorum(self):
        pass

    def should_commit(self):
        return self.error is None

    def errored(self):
        return self.error

    def report_error(self, error):
        self.error = error


@pytest.fixture
def begin_step(monkeypatch):
    """Return a function that lets two ranks vote at once."""
    ballots, met = {}, threading.Barrier(2, timeout=WAIT_S)

    def reduced(least, timeout):
        ballots[threading.get_ident()] = least
        met.wait()
        outcome = tuple(map(min, *ballots.values()))
        met.wait()
        return outcome

    monkeypatch.setattr(fenced_steps, "_reduced", reduced)
    monkeypatch.setattr(fenced_steps, "_obstacle", lambda manager: "")

    def begin(make_ranks):
        ranks = make_ranks()
        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(rank.start_quorum) for rank in ranks]:
                done.result(WAIT_S)
        return ranks

    return begin


def test_two_ranks_with_the_same_change_agree(begin_step):
    ranks = begin_step(lambda: (Rank(), Rank()))
    assert [(rank.error, rank.changes._fence.agreed) for rank in ranks] == [(None, 1)] * 2


@pytest.mark.parametrize(
    "handle",
    [
        "no JSON",
        "[" * 100_000,
        '{"id": "x"}',
        '{"torchloom": [2, 5, 1, 0, 9, 0]}',
        '{"torchloom": [1, 5, 1]}',
        '{"torchloom": [1, 5, 1, 0, 9, -1]}',
        '{"torchloom": [1, 5, 1, 0, 9, 1e3]}',
        '{"torchloom": [1, 5, 1, 0, 9, 9223372036854775808]}',
    ],
)
def test_if_one_rank_sees_a_group_without_a_vote_its_whole_group_does_not_vote(begin_step, handle):
    ranks = begin_step(lambda: (Rank(other=handle), Rank()))
    assert [(rank.error, rank.changes._fence.agreed) for rank in ranks] == [(None, 0)] * 2
    assert [rank.changes.can_vote for rank in ranks] == [False, False]


def test_a_rank_that_never_votes_fails_its_groups_step_with_the_reason(monkeypatch):
    def reduced(least, timeout):
        raise RuntimeError("Timed out")

    monkeypatch.setattr(fenced_steps, "_reduced", reduced)
    monkeypatch.setattr(fenced_steps, "_obstacle", lambda manager: "")
    rank = Rank()
    rank.start_quorum()
    assert str(rank.error).startswith("the ranks of this group did not vote: RuntimeError")


def test_if_one_rank_is_behind_its_whole_group_loads_a_state(begin_step):
    ranks = begin_step(lambda: (Rank(fence=Fence(lineage=7)), Rank(fence=Fence(lineage=8))))
    assert [rank._step for rank in ranks] == [4, 4]
    assert all(
        str(rank.error) == "the ranks differ in the steps that they have made" for rank in ranks
    )


def test_if_one_rank_could_not_rewind_its_whole_group_loads_a_state(begin_step):
    def ranks():
        one, other = Rank(fence=Fence(lineage=2**40)), Rank(fence=Fence(lineage=2**40))
        other.changes.lose_state()
        return one, other

    one, other = begin_step(ranks)
    assert [rank._step for rank in (one, other)] == [4, 4]
    assert not any(rank.should_commit() for rank in (one, other))
