"""The pipeline that is disturbed: 12 layers with dropout, two replicas of four micro-batches."""

import torch
from torch import Tensor, nn

from torchloom_threadlet.pipeline import Pipeline, attach

LAYERS, WIDTH, SAMPLES, CLASSES = 12, 96, 32, 10
REPLICAS, MICRO_BATCHES, SEED = 2, 4, 41


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.drop = nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, changed a little."""
        out: Tensor = values + self.drop(self.down(torch.relu(self.up(self.norm(values)))))
        return out


def attached(worker: str, rendezvous: str | None) -> Pipeline:
    """Make this process a worker; without a rendezvous it trains alone."""
    layers = [Block] * (LAYERS - 1)
    return attach(
        layers=[*layers, lambda: nn.Linear(WIDTH, CLASSES)],
        loss=nn.functional.cross_entropy,
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-3),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9),
        replicas=REPLICAS,
        micro_batches=MICRO_BATCHES,
        seed=SEED,
        rendezvous=rendezvous,
        worker=worker,
        timeout_s=60.0,
    )


def batch(step: int, replica: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, the same whenever they are asked for."""
    made = torch.Generator().manual_seed(REPLICAS * step + replica)
    inputs = torch.randn(SAMPLES, WIDTH, generator=made)
    return inputs, (inputs[:, :CLASSES] + inputs[:, CLASSES : 2 * CLASSES]).argmax(1)
