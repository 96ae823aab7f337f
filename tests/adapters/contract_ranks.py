"""Ranks in one process, each with a framework's adapter, for the contract of adapters."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch.distributed as dist

from tests.threadlet.test_adapter_contract import connected
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.testing import Rank


@contextmanager
def ranks_of(*adapters):
    count, store = len(adapters), dist.HashStore()
    looms = [attach_framework(adapter, rank=rank) for rank, adapter in enumerate(adapters)]
    with ThreadPoolExecutor(count) as threads:
        groups = threads.map(lambda rank: connected(store, rank, count), range(count))
        for loom, group in zip(looms, groups, strict=True):
            loom.adapter.vote_within(group)
    yield [Rank(loom, loom.step) for loom in looms]
    for loom in looms:  # a rank that left alone, as the next test attaches, would wait at its end
        type(loom.adapter).close(loom.adapter)
