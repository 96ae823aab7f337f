"""The phases of a model and an optimizer on a device, next to torch.compile and DDP."""

import copy
import io
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

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


def test_a_copy_of_a_model_is_not_measured(steps):
    model = torch.nn.Linear(3, 1)
    hook_model(model, steps)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        steps.begin_step()
        copied(torch.ones(2, 3))
        assert steps.phases() == ["other"]


def test_a_forward_without_gradients_has_no_backward(steps):
    model = torch.nn.Linear(3, 1)
    hook_model(model, steps)
    steps.begin_step()
    with torch.no_grad():
        model(torch.ones(2, 3))
    assert steps.phases() == ["other", "forward", "other"]


def test_an_optimizer_begins_once_its_closure_has_computed_the_gradients(steps):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook_model(model, steps)
    hook_optimizer(optimizer, steps)
    steps.begin_step()

    def closure():
        return model(torch.ones(2, 3)).sum().backward()

    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert steps.phases() == PHASES + PHASES[1:]


def test_an_optimizer_gets_arguments_that_are_no_closure_as_they_are(steps):
    class Scaled(torch.optim.SGD):
        def step(self, scale):
            self.scale = scale

    optimizer = Scaled([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    hook_optimizer(optimizer, steps)
    steps.begin_step()
    optimizer.step(2.0)
    assert optimizer.scale == 2.0
    assert steps.phases() == ["other", "optimizer", "other"]


class HeadFirst(torch.nn.Module):
    """Its first parameters get their gradients first."""

    def __init__(self):
        super().__init__()
        self.head, self.body = torch.nn.Linear(3, 1), torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x))


def test_ddp_waits_from_its_last_gradient_to_the_end_of_its_backward_if_it_reduces(steps):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def reduce_later(_, bucket):
        reduced = torch.futures.Future()

        def end():
            steps._device.now_s += 8.0
            reduced.set_result(bucket.buffer())

        threading.Timer(0.02, end).start()
        return reduced

    try:
        model = DistributedDataParallel(HeadFirst())
        model.register_comm_hook(None, reduce_later)

        def compute(_):
            steps._device.now_s += 2.0

        model.module.body.weight.register_post_accumulate_grad_hook(compute)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hooks = hook_model(model, steps) + hook_optimizer(optimizer, steps)
        waiting = [*PHASES[:3], "wait", "backward", *PHASES[3:]]
        assert train(model, optimizer, steps) == waiting
        steps.end_step()
        row = steps.read_later({})
        steps.read()
        assert (row["wait_s"], row["compute_s"], row["backward_s"]) == (8.0, 2.0, 2.0)
        with model.no_sync():
            assert train(model, optimizer, steps) == PHASES
        for undo in hooks:
            undo()
        assert train(model, optimizer, steps) == ["other"]
    finally:
        dist.destroy_process_group()


@pytest.fixture
def sharded():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    for part in model:
        fully_shard(part, mesh=mesh)
    yield model
    dist.destroy_process_group()


def test_fsdp_waits_for_each_parts_parameters_and_gradients(steps, sharded):
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
    hooks = hook_model(sharded, steps) + hook_optimizer(optimizer, steps)
    forward = ["forward", "wait"] * 2 + ["forward"]
    waiting = ["wait", "backward"]  # for parameters and gradients of one part, then of the other
    backward = ["backward", *waiting * 4, *waiting]
    phases = train(sharded, optimizer, steps, count=2)
    assert phases == ["other", *forward, *backward, "optimizer", "other"]
    for undo in hooks:
        undo()
    assert train(sharded, optimizer, steps) == ["other"]


def test_an_fsdp_with_other_methods_has_no_waits_and_one_line_says_so(
    steps, sharded, monkeypatch, caplog
):
    monkeypatch.delattr(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup.wait_for_unshard"
    )
    hook_model(sharded, steps)
    assert not steps.knows_waits
    (message,) = caplog.messages
    assert message.startswith("FSDP: its waits are not measured with torch ")
