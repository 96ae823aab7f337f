"""A training step of about a wanted time, on a GPU or a CPU."""

from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

from experiments.gpu.section import Device

_LAYERS = 4
_MOST_PARTS = 400


class Training:
    """A small network, trained on numbers that stay on the device.

    ``parts``: the forward and backward passes of a step, whose gradients add up.
    """

    def __init__(self, device: Device) -> None:
        width, batch = device.sized(2048, 128), device.sized(1024, 32)
        torch.manual_seed(7)
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(_LAYERS)]
        self.model: nn.Module = nn.Sequential(*layers).to(device.torch)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(batch, width, device=device.torch)
        self.parts = 1
        self.forward: Callable[[Tensor], Tensor] = lambda data: self.model(data).square().mean()

    def step(self) -> Tensor:
        """Train once, and return the loss."""
        self.optimizer.zero_grad(set_to_none=False)  # a CUDA graph needs the same memory
        for _ in range(self.parts):
            loss = self.forward(self.data)
            loss.backward()
        self.optimizer.step()
        return loss

    def last(self, wanted_s: float, device: Device) -> float:
        """Take as many parts as make a step of about ``wanted_s``; return its time."""
        self.parts = 4
        for _ in range(3):
            self.step()
        taken_s = median(device.seconds(self.step, 3) for _ in range(3))
        self.parts = max(1, min(_MOST_PARTS, round(self.parts * wanted_s / taken_s)))
        self.step()
        return device.seconds(self.step, 3)

    def at_once(self) -> None:
        """Make one forward and backward pass of all parts."""
        self.data, self.parts = self.data.repeat(self.parts, 1), 1
