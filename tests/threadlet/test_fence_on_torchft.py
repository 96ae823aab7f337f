"""The properties of torchft that the fence's argument relies on."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

os.environ.setdefault("RUST_LOG", "error")
torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from torch.distributed import TCPStore  # noqa: E402
from torchft import Manager, ProcessGroupGloo  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402

pytestmark = pytest.mark.integration
TIMEOUT = timedelta(seconds=20)


class Group:
    """A replica group of one rank, whose weights are a text."""

    def __init__(self, name, lighthouse, *, init_sync, step=0):
        self.state = {"weights": name}
        self.store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=TIMEOUT),
            load_state_dict=self.state.update,
            state_dict=self.state.copy,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=TIMEOUT,
            quorum_timeout=TIMEOUT,
            connect_timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self.store.port,
            lighthouse_addr=lighthouse,
            replica_id=name,
            init_sync=init_sync,
        )
        self.manager._step = step

    def begin_step(self):
        self.manager.start_quorum()
        return self.state["weights"]

    def end_step(self, error=None):
        self.manager.allreduce(torch.ones(2)).wait()
        if error:
            self.manager.report_error(RuntimeError(error))
        return self.manager.should_commit()


@pytest.fixture(params=[True, False], ids=["init_sync", "no init_sync"])
def groups(request):
    """Two groups, of which ``a`` has a negative step."""
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, quorum_tick_ms=20)
    pair = [
        Group(name, lighthouse.address(), init_sync=request.param, step=step)
        for name, step in (("a", -1), ("b", 0))
    ]
    yield pair
    for group in pair:
        group.manager.shutdown()
        group.manager._checkpoint_transport._server.server_close()  # torchft leaves it open
    lighthouse.shutdown()


def at_once(*calls):
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(30) for future in [threads.submit(call) for call in calls]]


def test_only_a_group_that_decrements_its_step_gets_a_peers_state(groups):
    a, b = groups
    assert at_once(a.begin_step, b.begin_step) == ["b", "b"]
    assert at_once(a.end_step, b.end_step) == [True, True]
    a.state["weights"], b.state["weights"] = "what a did alone", "what b did alone"
    assert at_once(a.begin_step, b.begin_step) == ["what a did alone", "what b did alone"]
    split = "not all have one past"
    assert at_once(lambda: a.end_step(split), lambda: b.end_step(split)) == [False, False]
    a.manager._step -= 1
    assert at_once(a.begin_step, b.begin_step) == ["what b did alone"] * 2


def test_each_group_decides_alone_whether_it_commits_a_step(groups):
    a, b = groups
    at_once(a.begin_step, b.begin_step)
    assert at_once(a.end_step, lambda: b.end_step("its own")) == [True, False]
    assert (a.manager.current_step(), b.manager.current_step()) == (1, 0)
