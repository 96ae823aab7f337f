"""Replica groups of real torchft, a thread each, for tests of work between two steps."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.coordination import LighthouseServer

SOON = timedelta(seconds=20)
NOT_WRITABLE = "ignore:The given buffer is not writable"
"""Warned once per process by torchft's checkpoint receiver; raised, it would fail the step."""


def with_torchft(test):
    """Mark a test that starts groups."""
    return pytest.mark.integration(pytest.mark.filterwarnings(NOT_WRITABLE)(test))


def _no_states(group):
    return {}, lambda state: None


def train(count, body, *, states=_no_states, async_quorum=False, wrapped=lambda pg: pg):
    """Call ``body(group, manager, pg)`` for so many groups at once; return their results.

    ``states(group)`` returns a joiner's state, or a function that returns it, and its loader.
    ``wrapped(pg)`` is the Manager's process group over gloo's.
    """
    torch.set_num_threads(1)
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=count, join_timeout_ms=20_000)
    try:
        with ThreadPoolExecutor(count) as pool:
            futures = [
                pool.submit(_group, lighthouse, group, count, body, states, async_quorum, wrapped)
                for group in range(count)
            ]
            return [future.result() for future in futures]
    finally:
        lighthouse.shutdown()


def _group(lighthouse, group, count, body, states, async_quorum, wrapped):
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    pg = wrapped(ProcessGroupGloo(timeout=SOON))
    save, load = states(group)
    transport = HTTPTransport(timeout=SOON, num_chunks=0)
    manager = Manager(
        pg=pg,
        load_state_dict=load,
        state_dict=save if callable(save) else lambda: save,
        min_replica_size=count,
        use_async_quorum=async_quorum,
        init_sync=not async_quorum,
        timeout=SOON,
        quorum_timeout=SOON,
        replica_id=f"g{group}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse.address(),
        hostname="localhost",
        checkpoint_transport=transport,
    )
    try:
        return body(group, manager, pg)
    finally:
        manager.shutdown()
        transport._server.server_close()  # the transport leaves its socket open
