"""The attached example of Lightning for the tests; a journal has a line for each optimizer step."""

import argparse
import json
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.attached_scripts.train_lightning import LitAutoEncoder


class Journal(pl.Callback):
    """Writes each step before any other callback acts on it."""

    def __init__(self, folder, step_s):
        self._folder, self._step_s, self._step = folder, step_s, 0

    def setup(self, trainer, pl_module, stage):
        path = self._folder / f"{trainer.global_rank}.jsonl"
        self._file = path.open("a", buffering=1)

    def on_train_start(self, trainer, pl_module):
        self._step = trainer.global_step

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        gradients = [one.grad for one in pl_module.parameters() if one.grad is not None]
        pl_module.log("unclipped_norm", get_total_norm(gradients))

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if trainer.global_rank == 1 and (self._folder / "fails").exists():
            raise OSError("cannot write its own file")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(self._step_s)
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        weights = sum(float(one.detach().double().sum()) for one in pl_module.parameters())
        line = {
            "event": "step",
            "step": self._step,
            "loss": float(outputs["loss"]).hex(),
            "weights": weights.hex(),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "clip": trainer.gradient_clip_val,
            "accumulate": trainer.accumulate_grad_batches,
            "samples": len(batch[0]),
        }
        self._file.write(json.dumps(line) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument(
        "--every", type=int, default=10, help="steps between two checkpoints, 0: epochs"
    )
    parser.add_argument("--plain", action="store_true", help="without the callback")
    parser.add_argument("--plain-loader", action="store_true", help="one that cannot resume")
    options = parser.parse_args()
    pl.seed_everything(7)
    data = TensorDataset(torch.rand(320, 64, generator=torch.Generator().manual_seed(1)))
    folder = options.journal / "checkpoints"
    callbacks = [Journal(options.journal, options.step_s)]
    if not options.plain:
        from torchloom_threadlet.adapters.lightning import TorchLoomCallback

        callbacks.append(TorchLoomCallback())
    often = {"every_n_train_steps": options.every} if options.every else {"every_n_epochs": 1}
    callbacks.append(ModelCheckpoint(folder, save_last=True, **often))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=-1,
        max_steps=options.steps,
        callbacks=callbacks,
        use_distributed_sampler=False,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=1,
    )
    sampler = DistributedSampler(data, trainer.world_size, trainer.global_rank, seed=3)
    kind = DataLoader if options.plain_loader else StatefulDataLoader
    trainer.fit(LitAutoEncoder(), kind(data, batch_size=8, sampler=sampler), ckpt_path="last")


if __name__ == "__main__":
    main()
