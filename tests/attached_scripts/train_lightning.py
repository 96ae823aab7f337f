"""In the manner of Lightning's examples: a small autoencoder, two processes on CPUs."""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader


class LitAutoEncoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1))
        self.decoder = nn.Linear(32, 64)

    def training_step(self, batch, batch_idx):
        (images,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(images)), images)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    pl.seed_everything(7)
    data = TensorDataset(torch.rand(320, 64, generator=torch.Generator().manual_seed(1)))
    saver = ModelCheckpoint(options.checkpoints, every_n_train_steps=10, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=-1,
        max_steps=options.steps,
        callbacks=[saver],
        use_distributed_sampler=False,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
    )
    sampler = DistributedSampler(data, trainer.world_size, trainer.global_rank, seed=3)
    loader = StatefulDataLoader(data, batch_size=8, sampler=sampler)
    trainer.fit(LitAutoEncoder(), loader, ckpt_path="last")
    if trainer.is_global_zero:
        print("loss", float(trainer.callback_metrics["train_loss"]))


if __name__ == "__main__":
    main()
