"""Train a model of 2 million weights by DDP; a journal has the time of each step and its loss."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchloom_threadlet.torchrun import attach

WIDTH, LAYERS = 512, 8


def main() -> None:
    """Train so many steps, and write the sum of all weights at the end."""
    place, journal, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loom = attach()
    loom.manage(optimizer)
    torch.manual_seed(dist.get_rank())
    checkpoints = loom.checkpoints(model, optimizer, path=place, every_s=1e6, memory_every_s=1e6)
    with journal.with_suffix(f".{dist.get_rank()}").open("a", buffering=1) as out:
        for step in range(checkpoints.step + 1, steps):
            data = torch.randn(4, WIDTH)
            loss = (model(data) - data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.1)
            out.write(f"step {step} {time.time()} {loss.item()!r}\n")
            if not loom.step(loss=loss):
                break
        else:
            out.write(
                f"end {sum(float(w.detach().double().sum()) for w in model.parameters())!r}\n"
            )
    loom.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
