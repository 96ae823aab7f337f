"""A small program of six layers with dropout, and its assignments to workers."""

import torch
from torch import nn

from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_threadlet.experts import MoELayer
from torchloom_threadlet.pipeline.layers import Program

WIDTH, SAMPLES, EXPERTS = 16, 8, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, values):
        return values + self.drop(torch.tanh(self.line(self.norm(values))))


class Mixture(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.experts = MoELayer(WIDTH, expert, optimizer, num_moe_experts=EXPERTS, **options)

    def forward(self, values):
        return values + self.experts(values)


def expert():
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))


def optimizer(weights):
    return torch.optim.AdamW(weights, lr=1e-2)


def program(experts=None, **changes):
    """Return a program; ``experts`` are options of its layers with experts, if it has any."""
    layers = [lambda: nn.Linear(WIDTH, WIDTH), *[Block] * 4, lambda: nn.Linear(WIDTH, 3)]
    if experts is not None:
        mixtures = [
            lambda first=first: Mixture(first_expert=first, **experts) for first in (0, EXPERTS)
        ]
        layers = [layers[0], *mixtures, layers[-1]]
    return Program(
        **{
            "layers": layers,
            "loss": nn.functional.cross_entropy,
            "optimizer": optimizer,
            "scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
            "replicas": 2,
            "micro_batches": 4,
            "seed": 3,
        }
        | changes
    )


def batch(step, replica):
    made = torch.Generator().manual_seed(1000 * step + replica)
    inputs = torch.randn(SAMPLES, WIDTH, generator=made)
    return inputs, torch.randint(3, (SAMPLES,), generator=made)


def assigned(*routes, generation=1, standbys=()):
    """Return an assignment from texts like ``"a:2 b:4 c:6"``: up to which layer, by worker."""
    stages = []
    for route in routes:
        first, found = 0, []
        for part in route.split():
            name, end = part.split(":")
            found.append(Stage(name, first, int(end)))
            first = int(end)
        stages.append(tuple(found))
    return Assignment(generation=generation, layers=6, routes=tuple(stages), standbys=standbys)


UNDISTURBED = assigned("a0:2 a1:4 a2:6", "b0:2 b1:4 b2:6")
"""Two replicas of three stages."""

OTHERS = {
    "fewer stages": assigned("a0:3 a2:6", "b0:2 b1:4 b2:6"),
    "a peer computes both": assigned("a0:2 b1:4 a2:6", "b0:2 b1:4 b2:6"),
    "dropped": assigned("b0:2 b1:4 b2:6", "b0:2 b1:4 b2:6"),
    "one worker alone": assigned("a0:6", "a0:6"),
    "uneven": assigned("a0:1 b0:2 a1:6", "b0:5 a1:6"),
}
