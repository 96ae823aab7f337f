"""The phases of a model and an optimizer on a device, next to torch.compile and DDP."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.threadlet.fake_device import FakeDevice  # noqa: E402
from torchloom_threadlet.device.hooks import hook_model, hook_optimizer  # noqa: E402
from torchloom_threadlet.device.steps import DeviceSteps  # noqa: E402


class Recorded(DeviceSteps):
    """Records the phases in order."""

    def phases(self):
        return [phase for phase, _ in self._marks]


@pytest.fixture
def steps():
    return Recorded(FakeDevice())


def train(model, optimizer, steps, count=1):
    for _ in range(count):
        steps.begin_step()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    return steps.phases()


PHASES = ["other", "forward", "backward", "optimizer", "other"]


def test_compiled_models_and_optimizers_have_no_graph_break(steps):
    counter = CompileCounter()
    model = torch.compile(torch.nn.Linear(3, 1), backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook_model(model, steps)
    hook_optimizer(optimizer, steps)
    assert train(model, optimizer, steps, count=3) == PHASES
    assert counter.frame_count == 1

    inner = torch.nn.Linear(3, 1)
    hook_model(inner, steps)  # its hooks are compiled with it
    torch.compile(inner.__call__, backend=counter, fullgraph=True)(torch.ones(2, 3))
    assert counter.frame_count == 2


def test_a_forward_without_gradients_has_no_backward(steps):
    model = torch.nn.Linear(3, 1)
    hook_model(model, steps)
    steps.begin_step()
    with torch.no_grad():
        model(torch.ones(2, 3))
    assert steps.phases() == ["other", "forward", "other"]


def test_ddp_waits_from_its_last_gradient_on_if_it_reduces(steps):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hook_model(model, steps)
        hook_optimizer(optimizer, steps)
        waiting = [*PHASES[:3], "wait", *PHASES[3:]]
        assert train(model, optimizer, steps) == waiting
        with model.no_sync():
            assert train(model, optimizer, steps) == PHASES
    finally:
        dist.destroy_process_group()
