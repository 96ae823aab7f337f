"""Ranks of a real gloo process group, each a thread of this process."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist

from tests.deadlines import DEADLINE_S


def on_ranks(size, work):
    """Return ``work(rank, group)`` of all ranks, run at the same time."""
    store = dist.HashStore()

    def run(rank):
        timeout = timedelta(seconds=DEADLINE_S)
        group = dist.ProcessGroupGloo(dist.PrefixStore("g", store), rank, size, timeout)
        return work(rank, group)

    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(size)]]
