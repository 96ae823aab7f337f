"""The rank that trains meanwhile, and records how long its steps take.

``python live.py JOURNAL`` with a join file in ``TORCHLOOM_JOIN``; a line a step, its end and its
time in seconds of the machine's monotonic clock.
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from torchloom_threadlet import attach

WIDTH, BATCH = 384, 64


def main() -> None:
    """Train until the run is over."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, WIDTH)
    loom = attach()
    loom.optimizer(optimizer)
    with Path(sys.argv[1]).open("a", buffering=1) as journal:
        while True:
            began = time.monotonic()
            optimizer.zero_grad()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
            if not loom.step(loss=loss.detach()):
                break
            ended = time.monotonic()
            journal.write(f"{ended} {ended - began}\n")


if __name__ == "__main__":
    main()
