"""A training script that waits in each step, as for a GPU, and saves a state of a given size."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from torchloom_threadlet.torchrun import attach

WIDTH = 64
ROWS = 1024


def main() -> None:
    """Train until killed; a line of the journal has a step, its time and the interval in force."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every-s", type=float, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--state-mb", type=float, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loom = attach()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    frozen = nn.Module()
    columns = round(options.state_mb * 1e6 / 4 / ROWS)
    frozen.weight = nn.Parameter(torch.randn(ROWS, columns), requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loom.manage(optimizer)
    place = options.folder / "checkpoints"
    checkpoints = loom.checkpoints(
        model, frozen, optimizer, path=place, every_s=options.every_s, keep=2
    )
    with (options.folder / "steps").open("a", buffering=1) as journal:
        step = checkpoints.step
        while True:
            step += 1
            data = torch.randn(8, WIDTH)
            optimizer.zero_grad()
            loss = (model(data) - data).square().mean()
            loss.backward()
            time.sleep(options.step_s)
            optimizer.step()
            if not loom.step(step, loss=loss):
                break
            every_s = loom.knobs["checkpoint_interval_s"]
            journal.write(f"{step} {time.monotonic()!r} {every_s!r}\n")


if __name__ == "__main__":
    main()
