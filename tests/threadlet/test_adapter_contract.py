"""The built-in adapters fulfil the contract that is shipped for anyone's."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch.distributed as dist

import torchloom_threadlet
from tests.threadlet.torchft_ranks import Run
from tests.threadlet.training.groups import NOT_WRITABLE
from torchloom_threadlet import torchrun
from torchloom_threadlet.testing import AdapterContract, Rank


class TestPlain(AdapterContract):
    agrees = False

    @contextmanager
    def ranks(self, count):
        looms = [torchloom_threadlet.attach(group=f"g{rank}") for rank in range(count)]
        yield [Rank(loom, loom.step) for loom in looms]


class TestTorchrun(AdapterContract):
    @contextmanager
    def ranks(self, count):
        looms, store = [torchrun.attach(rank=rank) for rank in range(count)], dist.HashStore()
        with ThreadPoolExecutor(count) as threads:
            groups = threads.map(lambda rank: connected(store, rank, count), range(count))
            for loom, group in zip(looms, groups, strict=True):
                loom.adapter.vote_within(group)
        yield [Rank(loom, loom.step) for loom in looms]


def connected(store, rank, ranks):
    return dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=60))


def test_the_contract_finds_ranks_that_agree_with_nobody():
    class Alone(TestTorchrun):
        @contextmanager
        def ranks(self, count):
            looms = [torchrun.attach(rank=rank) for rank in range(count)]
            for loom in looms:
                loom.adapter.vote_within(connected(dist.HashStore(), 0, 1))
            yield [Rank(loom, loom.step) for loom in looms]

    with pytest.raises(AssertionError, match="need one step"):
        Alone().test_a_fenced_change_is_made_at_one_step_on_all_ranks()


@pytest.mark.integration
@pytest.mark.filterwarnings(NOT_WRITABLE)
class TestTorchft(AdapterContract):
    @contextmanager
    def ranks(self, count):
        run = Run()
        try:
            ranks = [run.add(f"g{number}") for number in range(count)]

            def train(rank):
                rank.begin()
                rank.reduce()
                rank.commit()
                return rank.loom.step()

            if count > 1:
                run.together(*ranks)
                run.rest(*ranks)
            yield [Rank(rank.loom, lambda rank=rank: train(rank)) for rank in ranks]
        finally:
            run.close()
