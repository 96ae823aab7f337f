"""Trains a small model by DDP or FSDP2, each rank on a node of its own; saves in all tiers."""

import argparse
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from torchloom_threadlet.torchrun import attach

WIDTH, SAMPLES, BATCH = 128, 512, 8


def main() -> None:
    """Train, and write each step's loss to the rank's journal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--remote", default="")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--wrap", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--saves", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    logging.basicConfig()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    os.environ |= {"TORCHLOOM_NODE": f"n{rank}", "TORCHLOOM_RACK": f"r{rank}"}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = torch.randn(SAMPLES, WIDTH)
    model: nn.Module = nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
    )
    if options.wrap == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        TensorDataset(samples),
        BATCH,
        sampler=DistributedSampler(TensorDataset(samples), seed=3),
    )
    torch.manual_seed(100 + rank)
    loom = attach()
    loom.manage(optimizer)
    checkpoints = loom.checkpoints(
        model,
        optimizer,
        path=options.place,
        every_s=0.5 if options.saves else 1e6,
        memory_every_s=0.15 if options.saves else 0.0,
        remote=options.remote,
        remote_every_s=1.1,
    )
    with options.journal.with_suffix(f".{rank}").open("a", buffering=1) as journal:
        journal.write(f"begin {checkpoints.step} {time.time()}\n")
        for step, [batch] in checkpoints.batches(loader, options.steps):
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            journal.write(f"step {step} {loss.item()!r}\n")
            if not loom.step(loss=loss):
                break
    loom.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
