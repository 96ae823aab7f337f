"""In the manner of accelerate's examples: a small classifier with a loop of its own."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parts():
    """Return a model, its optimizer with a scheduler, and data."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(200, 16, generator=generator)
    labels = inputs[:, :8].sum(1).gt(inputs[:, 8:].sum(1)).long()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=2000)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
    return model, optimizer, scheduler, loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(
            use_stateful_dataloader=True, use_seedable_sampler=True
        ),
    )
    set_seed(7)
    model, optimizer, scheduler, loader = accelerator.prepare(*parts())
    steps = 0
    for epoch in range(options.epochs):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
        accelerator.print(f"loss {loss.item():.6f} at the end of epoch {epoch}, after step {steps}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
