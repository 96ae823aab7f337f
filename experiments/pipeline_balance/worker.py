"""A worker of the balance experiment: its layers take a fixed time, longer on a slow worker."""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchloom_threadlet.pipeline import attach

WIDTH, LAYERS, LAYER_S, SLOWER = 64, 12, 0.002, 3.0


class Wait(torch.autograd.Function):
    """Waits in forward and in backward, so that times do not depend on the number of cores."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, seconds: float) -> torch.Tensor:
        """Wait."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Wait as long."""
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Module):
    """A small layer that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.line, self.seconds = nn.Linear(WIDTH, WIDTH), seconds

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        waited: torch.Tensor = Wait.apply(values, self.seconds)  # type: ignore[no-untyped-call]
        return torch.tanh(self.line(waited))


def main() -> None:
    """Train, and write the time and the number of layers of each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args()
    name = os.environ["TORCHLOOM_WORKER"]
    seconds = LAYER_S * (SLOWER if name == options.slow else 1.0)
    torch.set_num_threads(1)
    pipeline = attach(
        layers=[lambda: Layer(seconds)] * LAYERS,
        loss=nn.functional.mse_loss,
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-3),
        replicas=2,
        micro_batches=4,
    )

    def batch(replica: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(2 * pipeline.steps + replica)
        inputs = torch.randn(16, WIDTH, generator=made)
        return inputs, inputs.roll(1, 1)

    with (options.journal / f"{name}.jsonl").open("w", buffering=1) as journal, pipeline:
        while pipeline.steps < options.steps and pipeline.step(batch) is not None:
            line = {"s": time.monotonic(), "layers": sorted(pipeline.layers)}
            journal.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
