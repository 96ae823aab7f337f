"""A compressed process group under torchft's Manager and DDP, switched and measured in a run."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from torchloom_threadlet.compression import MODES, CompressedProcessGroup, allreduce_knobs
from torchloom_threadlet.torchft import attach

pytestmark = pytest.mark.integration
TIMEOUT = timedelta(seconds=20)
STEPS = 2 * len(MODES)
NUMBERS = 64 * 64 + 64 + 64 * 4 + 4


@pytest.fixture
def lighthouse():
    server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=10_000)
    yield server.address()
    server.shutdown()


class Group:
    """A replica group of one rank, in a thread."""

    def __init__(self, name, lighthouse, *, attached=True):
        torch.manual_seed(0)
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
        gloo = ProcessGroupGloo(timeout=TIMEOUT)
        self.pg = CompressedProcessGroup(gloo, parameters=self._model.parameters())
        self.manager = Manager(
            pg=self.pg,
            load_state_dict=self._model.load_state_dict,
            state_dict=self._model.state_dict,
            min_replica_size=2,
            use_async_quorum=False,
            init_sync=False,
            timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=store.port,
            lighthouse_addr=lighthouse,
            replica_id=name,
            port=0,
            hostname="localhost",
        )
        self._store = store
        self.loom = attach(group=name)
        if attached:
            self.loom.manage(self.manager)
        self._ddp = DistributedDataParallel(self.manager, self._model)
        self._optimizer = Optimizer(self.manager, torch.optim.SGD(self._model.parameters(), 0.01))
        self.committed = []

    def train(self, seed):
        generator = torch.Generator().manual_seed(seed)
        for step in range(STEPS):
            self.pg.mode = MODES[step % len(MODES)]
            before = self.manager.current_step()
            self._optimizer.zero_grad()
            self._ddp(torch.randn(8, 64, generator=generator)).square().mean().backward()
            self._optimizer.step()
            self.committed.append(self.manager.current_step() - before)
            self.loom.step()
        self.manager.shutdown(wait=False)
        self.manager._checkpoint_transport._server.server_close()  # the Manager leaves it open
        return torch.cat([part.detach().view(-1) for part in self._model.parameters()])


def test_groups_that_switch_at_one_step_have_the_same_weights_and_fail_no_step(lighthouse):
    groups = [Group(name, lighthouse) for name in ("g0", "g1")]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(Group.train, groups, (1, 2))
    assert torch.equal(first, second)
    assert [group.committed for group in groups] == [[1] * STEPS] * 2
    for group in groups:
        rows = [metrics for _, _, metrics in group.loom._worker.samples.waiting]
        assert len(rows) == STEPS
        for metrics in rows:
            assert metrics["gradient_bytes"] == 4 * NUMBERS
            assert 0 < metrics["bucket_0_bytes"] == metrics["sent_bytes"]
            assert metrics["reductions"] == 1
            assert metrics["overlap_s"] >= 0.0


def test_the_managers_decision_ends_a_step_without_a_call_of_end_step(lighthouse):
    groups = [Group(name, lighthouse, attached=False) for name in ("g0", "g1")]
    with ThreadPoolExecutor(2) as pool:
        assert torch.equal(*pool.map(Group.train, groups, (1, 2)))
    assert all(group.pg._feedback._step == STEPS - 1 for group in groups)


def test_the_mode_knob_is_run_fenced_and_rejects_unknown_modes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pg = CompressedProcessGroup(ProcessGroupGloo(timeout=TIMEOUT))
    knob = allreduce_knobs(pg)[0]
    attach().knob(**knob)
    assert (knob["name"], knob["fence"], knob["choices"]) == ("compression", "run", MODES)
    knob["set"]("int8")
    assert (pg.mode, knob["get"]()) == ("int8", "int8")
    with pytest.raises(ValueError, match=r"need one of none, bf16, .*, was 'gzip'"):
        knob["set"]("gzip")
    assert pg.mode == "int8"
