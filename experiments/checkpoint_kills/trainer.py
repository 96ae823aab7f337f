"""Trains a small model by DDP, FSDP2 or torchft's DDP; saves in all tiers.

Each rank is on a node of its own; with torchft it is a replica group of its own.
"""

import argparse
import logging
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, SAMPLES, BATCH = 128, 512, 8


def main() -> None:
    """Train, and write each step's loss to the rank's journal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--remote", default="")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--wrap", choices=["ddp", "fsdp", "torchft"], default="ddp")
    parser.add_argument("--lighthouse", default="")
    parser.add_argument("--saves", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    logging.basicConfig()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    os.environ |= {"TORCHLOOM_NODE": f"n{rank}", "TORCHLOOM_RACK": f"r{rank}"}
    torch.manual_seed(0)
    samples = torch.randn(SAMPLES, WIDTH)
    model = nn.Sequential(
        nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
    )
    train = by_torchft if options.wrap == "torchft" else by_torchrun
    with options.journal.with_suffix(f".{rank}").open("a", buffering=1) as journal:
        for line in train(options, rank, model, samples):
            journal.write(line + "\n")


def tiers_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return where the checkpoints are saved, and how often."""
    return {
        "path": options.place,
        "every_s": 0.5 if options.saves else 1e6,
        "memory_every_s": 0.15 if options.saves else 0.0,
        "remote": options.remote,
        "remote_every_s": 1.1,
    }


def by_torchrun(
    options: argparse.Namespace, rank: int, model: nn.Module, samples: torch.Tensor
) -> Iterator[str]:
    """Train a rank of DDP or FSDP2; yield the lines of the journal."""
    from torchloom_threadlet.torchrun import attach

    dist.init_process_group("gloo")
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
    checkpoints = loom.checkpoints(model, optimizer, **tiers_of(options))
    yield f"begin {checkpoints.step} {time.time()}"
    for step, [batch] in checkpoints.batches(loader, options.steps):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield f"step {step} {loss.item()!r}"
        if not loom.step(loss=loss):
            break
    loom.close()
    dist.destroy_process_group()


def by_torchft(
    options: argparse.Namespace, rank: int, model: nn.Module, samples: torch.Tensor
) -> Iterator[str]:
    """Train one of two groups; yield the lines of the journal, one for each committed step."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import DistributedDataParallel as Replicated
    from torchft import Manager, Optimizer, ProcessGroupGloo

    from torchloom_threadlet.torchft import attach

    groups = int(os.environ["WORLD_SIZE"])
    os.environ |= {"TORCHLOOM_GROUP": f"g{rank}", "RANK": "0", "WORLD_SIZE": "1"}
    loom = attach()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        min_replica_size=groups,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"g{rank}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=options.lighthouse,
        use_async_quorum=False,
        timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=20),
    )
    optimizer, replicated = Optimizer(manager, inner), Replicated(manager, model)
    loom.manage(manager)
    checkpoints = loom.checkpoints(model, inner, manager, **tiers_of(options))
    yield f"begin {checkpoints.step} {time.time()}"
    while manager.current_step() < options.steps:
        optimizer.zero_grad()  # a group that began behind the other one has its state afterwards
        step = manager.current_step()
        torch.manual_seed(step * groups + rank)  # one group saves: the other's draws are not in it
        batch = samples[torch.randint(SAMPLES, (BATCH,))]
        loss = (replicated(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        if manager.current_step() > step:
            yield f"step {step} {loss.item()!r}"
        if not loom.step(loss=loss):
            break
    loom.close()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
