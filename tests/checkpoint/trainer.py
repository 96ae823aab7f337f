"""A script that trains a small model with checkpoints: plain, by DDP or by FSDP2."""

import argparse
import hashlib
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from torchloom_threadlet.torchrun import attach


def main() -> None:
    """Train, and write each step to a journal, and the digest of the state at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every-s", type=float, default=1000.0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--wrap", choices=["none", "ddp", "fsdp"], default="none")
    parser.add_argument("--memory-every-s", type=float, default=0.0)
    parser.add_argument("--remote", default="")
    parser.add_argument("--remote-every-s", type=float, default=1000.0)
    parser.add_argument("--nodes", action="store_true", help="Each rank is on a node of its own.")
    options = parser.parse_args()
    logging.basicConfig()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if options.nodes:
        os.environ["TORCHLOOM_NODE"] = f"n{rank}"
    if options.wrap != "none":
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = (nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 16))
    model: nn.Module = nn.Sequential(*layers)
    if options.wrap == "ddp":
        model = DistributedDataParallel(model)
    elif options.wrap == "fsdp":
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    loom = attach()
    loom.manage(optimizer, schedule)
    torch.manual_seed(100 + rank)
    checkpoints = loom.checkpoints(
        model,
        optimizer,
        schedule,
        path=options.place,
        every_s=options.every_s,
        memory_every_s=options.memory_every_s,
        remote=options.remote,
        remote_every_s=options.remote_every_s,
    )
    with options.journal.with_suffix(f".{rank}").open("a", buffering=1) as journal:
        journal.write(f"begin {checkpoints.step}\n")
        for step in range(checkpoints.step + 1, options.steps):
            data = torch.randn(8, 16)
            loss = (model(data) - data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            journal.write(f"step {step} {loss.item()!r}\n")
            time.sleep(options.step_s)
            if not loom.step(loss=loss):
                journal.write("left\n")
                break
        else:
            journal.write(f"end {digest(model, optimizer)}\n")
    loom.close()
    if options.wrap != "none":
        dist.destroy_process_group()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the digest of weights and moments, whole."""
    found = hashlib.sha256()
    for weight in model.parameters():
        for tensor in (weight, optimizer.state[weight]["exp_avg_sq"]):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    main()
