"""Ranks that save together meet first, or none of them begins."""

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from torchloom_threadlet.checkpoint import saving_ranks
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks


@pytest.fixture
def ranks(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(saving_ranks, "_MEETING", timedelta(seconds=0.5))
    monkeypatch.setattr(saving_ranks.dist.distributed_c10d, "_get_default_store", lambda: store)
    found = [SavingRanks() for _ in range(3)]
    for one in found:
        one.group, one.count = object(), 3
    return found


def meet(ranks, name):
    """Have these ranks meet at once; return whether each one has met all."""
    outcomes = []

    def come(rank):
        try:
            rank.meet(name)
            outcomes.append(True)
        except TimeoutError:
            outcomes.append(False)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return outcomes


def test_all_ranks_meet_or_none_also_one_that_comes_late(ranks):
    assert meet(ranks, "v1") == [True] * 3
    assert meet(ranks[:2], "v2") == [False] * 2
    assert meet(ranks[2:], "v2") == [False]
    assert meet(ranks, "v3") == [True] * 3
