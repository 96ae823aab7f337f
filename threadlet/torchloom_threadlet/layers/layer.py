"""A module that is trained with an optimizer of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from torchloom_threadlet.training.optimizer_knobs import Setting, settings

_DEFAULT_COPIES = 3  # of the weights: themselves and the two moments of Adam


@dataclass(eq=False)
class Layer:
    """A layer's module, its optimizer and its scheduler."""

    number: int
    module: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [weight for weight in self.module.parameters() if weight.requires_grad]

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """The optimizer's settings that may change while it runs, by name."""
        if self.optimizer is None:
            return {}
        return {one.name: one for one in settings(self.optimizer, self.scheduler)}

    @property
    def weights(self) -> Tensor:
        """A copy of all trained parameters, ``(numbers,)``."""
        return parameters_to_vector(self.parameters).detach().clone()

    def commit(self) -> None:
        """Apply the gradients in ``parameter.grad``."""
        if self.optimizer is not None:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()


def mixed(*numbers: int) -> int:
    """Return a seed of 63 bits that each of these numbers changes."""
    seed = 0x9E3779B97F4A7C15
    for number in numbers:
        seed = ((seed ^ (number & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        seed ^= seed >> 29
    return seed >> 1


def state_bytes(
    module: nn.Module, optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> int:
    """Return the bytes of the weights of a module on the meta device, and of its optimizer's state.

    Where the optimizer does not know that device, its state is counted as that of Adam.
    """
    weights = list(module.parameters())
    total = sum(weight.nbytes for weight in weights)
    if not weights:
        return 0
    try:
        made = optimizer(weights)
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        made.step()
    except Exception:  # noqa: BLE001 - the user's optimizer
        return _DEFAULT_COPIES * total
    finally:
        for weight in weights:
            weight.grad = None
    states = (state.values() for state in made.state.values())
    return total + sum(v.nbytes for values in states for v in values if isinstance(v, Tensor))
