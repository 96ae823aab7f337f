"""Trains a small program that is split over workers: by stages, or by the experts of a layer.

The trainer of ``torchloom demo --scenario mpmd``; without a rendezvous it trains alone.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchloom_threadlet.experts import MoELayer
from torchloom_threadlet.pipeline import Pipeline, attach

_LAYERS, _WIDTH, _SAMPLES, _CLASSES = 12, 64, 32, 10
_EXPERTS, _CLUSTERS, _INPUTS, _HIDDEN = 8, 8, 16, 32
_TOKENS = 128
"""Of a replica and step."""


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, changed a little."""
        changed: Tensor = values + self.drop(torch.tanh(self.line(self.norm(values))))
        return changed


class Experts(nn.Module):
    """A mixture of experts between two dense layers."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_INPUTS, _HIDDEN), nn.Linear(_HIDDEN, _INPUTS)
        self.experts = MoELayer(
            _HIDDEN,
            lambda: nn.Sequential(nn.Linear(_HIDDEN, 128), nn.GELU(), nn.Linear(128, _HIDDEN)),
            _adam,
            num_moe_experts=_EXPERTS,
            seed=options.seed,
            copies=options.copies,
            mirror_every=options.mirror_every,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return predictions, ``(tokens, inputs)``."""
        hidden = self.first(inputs)
        predicted: Tensor = self.last(hidden + self.experts(hidden))
        return predicted


def _adam(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=3e-3)


def _stages(options: argparse.Namespace) -> Pipeline:
    return attach(
        layers=[*[Block] * (_LAYERS - 1), lambda: nn.Linear(_WIDTH, _CLASSES)],
        loss=nn.functional.cross_entropy,
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=1e-3),
        replicas=2,
        micro_batches=4,
        seed=options.seed,
    )


def _experts(options: argparse.Namespace) -> Pipeline:
    return attach(
        layers=[lambda: Experts(options)],
        loss=nn.functional.mse_loss,
        optimizer=_adam,
        replicas=4,
        seed=options.seed,
    )


def _samples(step: int, replica: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs, and the class that two parts of each give together."""
    made = torch.Generator().manual_seed(_mixed(seed, step, replica))
    inputs = torch.randn(_SAMPLES, _WIDTH, generator=made)
    return inputs, (inputs[:, :_CLASSES] + inputs[:, _CLASSES : 2 * _CLASSES]).argmax(1)


def _clusters(step: int, replica: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs in clusters, each of which is mapped in a way of its own."""
    fixed = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(_CLUSTERS, _INPUTS, generator=fixed)
    maps = torch.randn(_CLUSTERS, _INPUTS, _INPUTS, generator=fixed) * _INPUTS**-0.5
    made = torch.Generator().manual_seed(_mixed(seed, step, replica))
    own = torch.randint(_CLUSTERS, (_TOKENS,), generator=made)
    noise = torch.randn(_TOKENS, _INPUTS, generator=made)
    targets = torch.tanh(noise.unsqueeze(1) @ maps[own]).squeeze(1) + centres[own].roll(1, 1)
    return centres[own] + 0.5 * noise, targets


def _mixed(seed: int, step: int, replica: int) -> int:
    return 1_000_003 * seed + 8 * step + replica


def main() -> None:
    """Train until the last step; write a line for each step, and the weights' digests."""
    options = _options()
    torch.set_num_threads(1)
    made, batch = (_experts, _clusters) if options.program == "experts" else (_stages, _samples)
    pipeline = made(options)
    with options.log.open("w", buffering=1) as log, pipeline:
        while pipeline.steps < options.steps:
            loss = pipeline.step(lambda replica: batch(pipeline.steps, replica, options.seed))
            if loss is None:
                return
            row = {"step": pipeline.steps, "loss": loss, "layers": sorted(pipeline.layers)}
            log.write(json.dumps({"t": time.time(), "committed": True, **row}) + "\n")
            time.sleep(options.step_ms / 1000)
        layers = pipeline.layers.items()
        weights = {number: _digest(layer.weights) for number, layer in layers}
        log.write(json.dumps({"step": pipeline.steps, "weights": weights}) + "\n")


def _digest(weights: Any) -> str:
    return hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=("stages", "experts"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=0.0, help="pause after each step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=1, help="holders of each expert")
    parser.add_argument("--mirror-every", type=int, default=0, help="steps; 0: no copies in memory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
