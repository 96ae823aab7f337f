"""The layers of a pipeline that one worker holds, each with its optimizer and scheduler."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.generations import ExpertLayer
from torchloom_threadlet.layers.layer import Layer, mixed, state_bytes
from torchloom_threadlet.pipeline.expert_parts import expert_layers

Factory = Callable[[], nn.Module]
Loss = Callable[[Any, Any], Tensor]
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Program:
    """What is trained: the same on all workers.

    Parameters
    ----------
    layers : sequence of callable
        Each returns a new ``nn.Module``; they are applied one after the other.
    loss : callable
        Mean loss of a micro-batch, from the last layer's output and the targets.
    optimizer : callable
        Returns the optimizer of one layer's parameters.
    scheduler : callable, optional
        Returns the learning rate scheduler of one layer's optimizer.
    replicas : int
        Shares of the global batch.
    micro_batches : int
        Of each replica.
    seed : int
        Of the initial weights, and of the layers' random numbers.
    """

    layers: Sequence[Factory]
    loss: Loss
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    replicas: int = 1
    micro_batches: int = 1
    seed: int = 0
    device: torch.device = _CPU

    def __post_init__(self) -> None:
        for name in ("replicas", "micro_batches"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"pipeline: need {name} >= 1, was {value}")
        if not self.layers:
            raise ConfigError("pipeline: need at least one layer, was none")
        for number, factory in enumerate(self.layers):
            if isinstance(factory, nn.Module):
                raise ConfigError(
                    f"pipeline: layer {number}: need a function that returns a new module, "
                    f"was a {type(factory).__name__}: write lambda: ..."
                )

    def layer(self, number: int) -> Layer:
        """Return a new layer, with its initial weights."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(mixed(self.seed, number))
            with self.device:
                module = self.layers[number]()
        layer = Layer(number, module.train())
        if layer.parameters:
            layer.optimizer = self.optimizer(layer.parameters)
            if self.scheduler is not None:
                layer.scheduler = self.scheduler(layer.optimizer)
        return layer

    @cached_property
    def on_meta(self) -> tuple[nn.Module, ...]:
        """All layers, without memory for their weights."""
        with torch.device("meta"):
            return tuple(factory() for factory in self.layers)

    @cached_property
    def expert_layers(self) -> tuple[ExpertLayer, ...]:
        """Those that have experts."""
        return expert_layers(self.on_meta)

    def layer_bytes(self) -> tuple[int, ...]:
        """Return the bytes of each layer's weights and optimizer state, about."""
        return tuple(state_bytes(module, self.optimizer) for module in self.on_meta)
