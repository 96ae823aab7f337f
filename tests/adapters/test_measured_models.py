"""Frameworks' adapters measure the model that the framework calls, here on a GPU that is a fake."""

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.adapters.installed import needs
from tests.threadlet.fake_device import FakeDevice
from torchloom_threadlet.device import hooks, source

pytestmark = pytest.mark.integration  # Lightning asks a program for the machine's cores
ALONE = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_s": 4.0}
WITH_DDP = ALONE | {"wait_s": 0.0, "compute_s": 7.0}
STEPS = 3
DDP = "DistributedDataParallel"


class Model(torch.nn.Module):
    """Takes the device a second in forward, two in backward and four in the optimizer."""

    def __init__(self, device):
        super().__init__()
        self.inner = torch.nn.Linear(3, 1)
        self.inner.register_forward_hook(lambda *_: device.passes(1.0))
        self.inner.weight.register_post_accumulate_grad_hook(lambda _: device.passes(2.0))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.optimizer.register_step_post_hook(lambda *_: device.passes(4.0))

    def forward(self, x):
        return {"loss": self.inner(x).sum()}


class Gpu(FakeDevice):
    """Notes the models that are measured."""

    def __init__(self):
        super().__init__()
        self.measured = []

    def passes(self, seconds):
        self.now_s += seconds


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    gpu, hook_model = Gpu(), hooks.hook_model

    def hook(model, steps):
        gpu.measured.append(type(model).__name__)
        return hook_model(model, steps)

    monkeypatch.setattr(hooks, "hook_model", hook)
    monkeypatch.setattr(source, "CudaDevice", lambda _: gpu)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    monkeypatch.setenv("TORCHLOOM_JOIN", str(tmp_path / "join.json"))  # of a later Weaver
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with mock.patch.dict(os.environ):  # frameworks set ranks in it
        yield gpu
    dist.destroy_process_group()


def rows_of(loom):
    rows = [row for _, row in loom._worker.samples.take(0)]
    names = WITH_DDP.keys()
    return [{name: row[name] for name in row.keys() & names} for row in rows[1:]]


@needs("lightning")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("strategy", "row", "measured"),
    [("ddp", WITH_DDP, [DDP] * 2), ("auto", ALONE, ["Module"] * 2)],
)
def test_lightning_with_and_without_ddp_in_two_fits(gpu, strategy, row, measured):
    import lightning.pytorch as pl

    from torchloom_threadlet.adapters.lightning import TorchLoomCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model(gpu)

        def training_step(self, batch, _):
            return self.model(batch)

        def configure_optimizers(self):
            return self.model.optimizer

    module, callback = Module(), TorchLoomCallback()
    silent = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    for _ in range(2):
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            strategy=strategy,
            max_steps=STEPS,
            callbacks=[callback],
            gradient_clip_val=1.0,
            **dict.fromkeys(silent, False),
        )
        trainer.fit(module, torch.utils.data.DataLoader(torch.ones(8, 3)))
        assert rows_of(callback.loom) == [row] * (STEPS - 1)
    assert gpu.measured == measured


@needs("transformers")
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_with_ddp_that_trains_twice(gpu, monkeypatch, tmp_path):
    from accelerate.utils import DistributedType
    from transformers import Trainer, TrainingArguments

    from torchloom_threadlet.adapters.transformers import TorchLoomCallback

    model, callback = Model(gpu), TorchLoomCallback()
    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=STEPS,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{"x": torch.ones(3)}] * 100
    optimizers = (model.optimizer, torch.optim.lr_scheduler.ConstantLR(model.optimizer))
    trainer = Trainer(
        model, arguments, train_dataset=data, callbacks=[callback], optimizers=optimizers
    )
    monkeypatch.setattr(trainer.accelerator.state, "distributed_type", DistributedType.MULTI_CPU)
    for _ in range(2):
        trainer.train()
        assert rows_of(callback.loom) == [WITH_DDP] * (STEPS - 1)
    assert gpu.measured == [DDP] * 2


@needs("accelerate")
def test_what_an_accelerator_prepares_twice_is_measured_once(gpu, monkeypatch):
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    from torchloom_threadlet.adapters.accelerate import attach

    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(accelerator.state, "distributed_type", DistributedType.MULTI_CPU)
    loom = attach(accelerator)
    model = Model(gpu)
    model, optimizer = accelerator.prepare(model, model.optimizer)
    assert accelerator.prepare(model) is model
    loom.manage(optimizer)
    for _ in range(STEPS):
        accelerator.backward(model(torch.ones(2, 3))["loss"])
        optimizer.step()
        loom.step()
    loom.close()
    assert rows_of(loom) == [WITH_DDP] * (STEPS - 1)
    assert gpu.measured == [DDP]
    assert not model._forward_pre_hooks
