"""Two attached ranks of one framework; rank 0 prints the seconds of each step.

Blocks of steps alternate: with torchLoom, and without its part in a step. The steps of one process
are compared, as those of two processes differ by more than torchLoom costs.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchloom_threadlet.loom import Loom
from torchloom_threadlet.training.gradients import Gradients

WIDTH, DEPTH, BATCH, SEED = 1024, 4, 256, 11
BLOCK = 2


class Model(nn.Module):
    """Linear layers whose step takes some 150 milliseconds on one core."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(DEPTH)]
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, as transformers' Trainer expects it."""
        return {"loss": nn.functional.mse_loss(self.layers(inputs), labels)}


class Times:
    """The seconds between two calls of :meth:`mark`: of the clock, and of a core.

    Every ``BLOCK`` steps torchLoom's part in a step begins or ends, on all ranks at the same one:
    ``loom.step`` with its vote and report, and the work on gradients before the update.
    """

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []
        self._since = time.perf_counter(), time.thread_time()

    def mark(self) -> None:
        """End a step."""
        now = time.perf_counter(), time.thread_time()
        self.seconds.append((now[0] - self._since[0], now[1] - self._since[1]))
        self._since = now

    def alternate(self) -> None:
        """Let torchLoom take part in every second block alone."""
        for owner, name in (
            (Loom, "step"),
            (Gradients, "_before_step"),
            (Gradients, "_after_step"),
        ):
            setattr(owner, name, self._in_turn(getattr(owner, name), name == "step"))

    def _in_turn(self, function: Any, otherwise: bool) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if len(self.seconds) // BLOCK % 2:
                return function(*arguments, **named)
            return otherwise or None

        return called


def data(steps: int) -> TensorDataset:
    """Return as many samples as two ranks need."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.rand(BATCH, WIDTH, generator=generator).repeat(2 * (steps + 1), 1)
    return TensorDataset(inputs, inputs)


def with_lightning(steps: int, times: Times) -> None:
    """Train with Lightning's Trainer."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self.model(*batch)["loss"]
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), fused=True)

    class Clock(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            times.mark()

    from torchloom_threadlet.adapters.lightning import TorchLoomCallback

    callbacks: list[Any] = [Clock(), TorchLoomCallback()]
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=steps,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(data(steps), BATCH))


def with_transformers(steps: int, times: Times) -> None:
    """Train with transformers' Trainer."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.mark()

    from torchloom_threadlet.adapters.transformers import TorchLoomCallback

    callbacks: list[Any] = [Clock(), TorchLoomCallback()]
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    samples = [{"inputs": a, "labels": b} for a, b in data(steps)]
    Trainer(Model(), arguments, train_dataset=samples, callbacks=callbacks).train()


def with_accelerate(steps: int, times: Times) -> None:
    """Train with a loop of accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model: Any = Model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), fused=True), DataLoader(data(steps), BATCH)
    )
    from torchloom_threadlet.adapters.accelerate import attach

    loom = attach(accelerator)
    loom.manage(optimizer)
    for _, (inputs, labels) in zip(range(steps), loader, strict=False):
        times.mark()
        with accelerator.accumulate(model):
            loss = model(inputs, labels)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        loom.step(loss=loss)
    accelerator.end_training()


def with_deepspeed(steps: int, times: Times) -> None:
    """Train with an engine of DeepSpeed, ZeRO-2."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    for name in deepspeed.ops.__compatible_ops__:  # else one is compiled for minutes
        deepspeed.ops.__compatible_ops__[name] = False
    model = Model()
    adamw = {"type": "AdamW", "params": {"torch_adam": True, "fused": True}}
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=data(steps),
        dist_init_required=True,
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_clipping": 1.0,
            "optimizer": adamw,
            "zero_optimization": {"stage": 2},
            "steps_per_print": 1_000_000,
        },
    )
    from torchloom_threadlet.adapters.deepspeed import attach

    attach(engine)
    for _, (inputs, labels) in zip(range(steps), loader, strict=False):
        times.mark()
        engine.backward(engine(inputs, labels)["loss"])
        engine.step()


def with_torchtitan(steps: int, times: Times) -> None:
    """Train torchtitan's debug model, two layers of it, by FSDP."""
    from tests.adapters.titan_trainer import debug, write_tokenizer

    os.environ["JOURNAL"] = str(Path.cwd())
    write_tokenizer(Path.cwd() / "tokenizer")
    config = debug()
    config.training.seq_len, config.training.steps = 128, steps
    config.checkpoint.enable = False
    from torchloom_threadlet.adapters.torchtitan import attached

    trainer = attached(config).build()
    step = trainer.train_step

    def timed_step(batches: Any) -> None:
        times.mark()
        step(batches)

    trainer.train_step = timed_step
    trainer.train()
    trainer.close()


def with_ray(steps: int, times: Times) -> None:
    """Train with two workers of Ray Train, which this process starts."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    path = Path.cwd() / "times.json"
    TorchTrainer(
        ray_worker,
        train_loop_config={"steps": steps, "path": str(path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(Path.cwd())),
    ).fit()
    times.seconds = json.loads(path.read_text())


def ray_worker(config: dict[str, Any]) -> None:
    """Train as one of Ray's workers; the first writes the times."""
    import ray.train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model: Any = prepare_model(Model())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    rank, times = ray.train.get_context().get_world_rank(), Times()
    times.alternate()
    from torchloom_threadlet.adapters.ray import attach

    loom = attach()
    loom.manage(optimizer)
    inputs = data(1).tensors[0][:BATCH]
    for _ in range(config["steps"]):
        times.mark()
        optimizer.zero_grad()
        loss = model(inputs, inputs)["loss"]
        loss.backward()
        optimizer.step()
        loom.step(loss=loss)
    loom.close()
    if rank == 0:
        Path(config["path"]).write_text(json.dumps(times.seconds))


JOBS = {
    "lightning": with_lightning,
    "transformers": with_transformers,
    "accelerate": with_accelerate,
    "deepspeed": with_deepspeed,
    "torchtitan": with_torchtitan,
    "ray": with_ray,
}


def main() -> None:
    """Run one job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=JOBS)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    times = Times()
    times.alternate()
    JOBS[options.framework](options.steps, times)
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(f"\ntimes {json.dumps(times.seconds)}\n")


if __name__ == "__main__":
    main()
