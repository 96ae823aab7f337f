"""The source of a joiner's state, as torchft's own Managers compute it from our answers."""

import asyncio
from datetime import timedelta

import pytest
from torchft._torchft import ManagerClient, ManagerServer

from tests.deadlines import DEADLINE_S
from tests.lighthouse.test_service import lighthouse
from torchloom_core.live.lighthouse.membership import SavedState

pytestmark = pytest.mark.integration
DEADLINE = timedelta(seconds=DEADLINE_S)


def start(name, target):
    return ManagerServer(
        replica_id=f"{name}:1",
        lighthouse_addr=f"http://{target}",
        hostname="localhost",
        bind="[::]:0",
        store_addr="",
        world_size=1,
        heartbeat_interval=timedelta(milliseconds=100),
        connect_timeout=DEADLINE,
        quorum_retries=0,
    )


def ask(server, step):
    return ManagerClient(server.address(), connect_timeout=DEADLINE)._quorum(
        group_rank=0,
        step=step,
        checkpoint_metadata="",
        shrink_only=False,
        timeout=DEADLINE,
        init_sync=True,
        commit_failures=0,
        reconfigure_handle="{}",
    )


@pytest.mark.parametrize(
    ("order", "source"), [((), "a"), (("c", "a"), "c"), (("d", "b"), "b"), (("x", "c"), "c")]
)
async def test_a_joiner_takes_the_state_of_the_first_in_the_order_that_has_it(order, source):
    steps = {"a": 5, "b": 5, "c": 5, "d": 0}
    members = tuple(f"{name}:1" for name in steps)  # so that the first request waits for the rest
    async with lighthouse(saved=SavedState(quorum_id=0, members=members, order=order)) as light:
        servers = {name: await asyncio.to_thread(start, name, light.target) for name in steps}
        try:
            calls = [asyncio.to_thread(ask, servers[name], step) for name, step in steps.items()]
            answers = dict(zip(steps, await asyncio.gather(*calls), strict=True))
        finally:
            for server in servers.values():
                await asyncio.to_thread(server.shutdown)
        assert answers["d"].heal
        assert answers["d"].recover_src_manager_address == servers[source].address()
        giving = [name for name, answer in answers.items() if answer.recover_dst_replica_ranks]
        assert giving == [source]
