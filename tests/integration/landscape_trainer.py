"""A script whose standby offers loss landscapes, and logs each computed loss."""

import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from torchloom_threadlet import attach
from torchloom_threadlet.landscape import Landscape

NEWEST = Path("newest.safetensors")
HOLD_POLL_S = 0.02


def network():
    """Return a small model."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def pinned(model):
    """Return the loss of the pinned batch."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (16,), generator=generator)
    return nn.functional.cross_entropy(model(inputs), targets)


def main():
    torch.set_num_threads(1)
    model, evaluations = network(), Path(os.environ["TEST_JOURNAL"])

    def loss():
        with evaluations.open("a") as journal:
            journal.write('{"event": "loss"}\n')
        while Path(os.environ["TEST_HOLD"]).exists():
            time.sleep(HOLD_POLL_S)
        noise = torch.rand(()) if "TEST_NOISE" in os.environ else 0.0
        return pinned(model) + noise

    landscape = Landscape(model, loss, lambda: model.load_state_dict(load_file(NEWEST)))
    loom = attach(landscape=landscape)
    while loom.step():
        time.sleep(HOLD_POLL_S)


if __name__ == "__main__":
    main()
