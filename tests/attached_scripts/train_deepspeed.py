"""In the manner of DeepSpeed's examples: a small classifier whose engine counts and clips."""

import argparse
import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

# Its shared-memory extension would be compiled for minutes, by two compilers.
for name in deepspeed.ops.__compatible_ops__:
    deepspeed.ops.__compatible_ops__[name] = False


def config(stage=2):
    """Return an engine's configuration."""
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
    }


def classifier():
    """Return the model."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


def data(rank, count):
    """Return a rank's batches."""
    inputs = torch.rand(200, 16, generator=torch.Generator().manual_seed(1))
    labels = inputs[:, :8].sum(1).gt(inputs[:, 8:].sum(1)).long()
    samples = TensorDataset(inputs, labels)
    sampler = DistributedSampler(samples, count, rank, seed=3)
    return StatefulDataLoader(samples, batch_size=4, sampler=sampler)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(7)
    deepspeed.init_distributed(dist_backend="gloo")
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model, loader = classifier(), data(rank, count)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config()
    )
    for epoch in range(options.epochs):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
        if rank == 0:
            print(f"loss {loss.item():.6f} at the end of epoch {epoch}")


if __name__ == "__main__":
    main()
