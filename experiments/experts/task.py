"""A task in which experts matter: each cluster of inputs has a mapping of its own.

``y = tanh(x A_c) B_c`` for an input of cluster ``c``: one expert cannot learn two such mappings
as well as two can.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchloom_threadlet.experts import MoELayer

WIDTH, HIDDEN = 32, 128
EXPERTS = 8
BATCH = 256
"""Tokens of a replica and step."""
HELD_OUT = 4096
NOISE = 0.3


@dataclass(frozen=True)
class Setting:
    """What differs between the experiments.

    Attributes
    ----------
    skew : float
        Cluster ``c`` has a share proportional to ``(c + 1) ** -skew``.
    ffn : int
        Hidden units of an expert.
    """

    skew: float = 0.5
    clusters: int = EXPERTS
    ffn: int = 512
    learning_rate: float = 3e-3
    moe_aux_loss_coeff: float = 0.01


PLAIN = Setting()


class Batch(NamedTuple):
    """Inputs and targets, ``(tokens, WIDTH)``, and the clusters, ``(tokens,)``."""

    inputs: Tensor
    targets: Tensor
    clusters: Tensor


class Task:
    """The clusters and their mappings."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self._seed = seed
        clusters = setting.clusters
        draw = torch.Generator().manual_seed(seed)
        self._centers = torch.randn(clusters, WIDTH, generator=draw)
        self._inner = torch.randn(clusters, WIDTH, WIDTH, generator=draw) * WIDTH**-0.5
        self._outer = torch.randn(clusters, WIDTH, WIDTH, generator=draw) * WIDTH**-0.5
        self._shares = torch.arange(1.0, clusters + 1).pow(-setting.skew)

    def batch(self, step: int, replica: int, tokens: int = BATCH) -> Batch:
        """Return the tokens of a replica at a step, whichever worker computes it."""
        draw = torch.Generator().manual_seed(self._seed * 7_919_003 + step * 101 + replica)
        clusters = torch.multinomial(self._shares, tokens, replacement=True, generator=draw)
        noise = torch.randn(tokens, WIDTH, generator=draw) * NOISE
        inputs = self._centers[clusters] + noise
        scaled = (noise / NOISE + self._centers[clusters]).unsqueeze(1)
        hidden = torch.tanh(scaled @ self._inner[clusters])
        return Batch(inputs, (hidden @ self._outer[clusters]).squeeze(1), clusters)

    def held_out(self) -> Batch:
        """Return the tokens that the loss is measured on."""
        return self.batch(-1, 0, HELD_OUT)


class Model(nn.Module):
    """A mixture of experts between two dense layers."""

    def __init__(self, seed: int, setting: Setting, mirror_every: int = 0) -> None:
        super().__init__()

        def optimizer(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.Adam(weights, lr=setting.learning_rate)

        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.experts = MoELayer(
            HIDDEN,
            lambda: new_expert(setting.ffn),
            optimizer,
            num_moe_experts=EXPERTS,
            moe_aux_loss_coeff=setting.moe_aux_loss_coeff,
            seed=seed,
            mirror_every=mirror_every,
        )
        self.last = nn.Linear(HIDDEN, WIDTH)
        self.dense_optimizer = optimizer(self.parameters())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return predictions, ``(tokens, WIDTH)``."""
        hidden = self.first(inputs)
        predicted: Tensor = self.last(hidden + self.experts(hidden))
        return predicted


def new_expert(ffn: int) -> nn.Module:
    """Return an expert with random weights."""
    return nn.Sequential(nn.Linear(HIDDEN, ffn), nn.GELU(), nn.Linear(ffn, HIDDEN))
