"""A stack of residual blocks that grows and shrinks while it is trained.

A new block's last layer is zero, so that it adds nothing at first: the stack computes what it
computed before, to the bit.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """``x + out(gelu(inner(norm(x))))``, with ``out`` zero at first."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)
        with torch.no_grad():
            for parameter in self.inner.parameters():
                parameter.uniform_(-(width**-0.5), width**-0.5, generator=generator)
            for parameter in self.out.parameters():
                parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Return what the next layer takes."""
        return x + self.out(nn.functional.gelu(self.inner(self.norm(x))))


class Stack(nn.Module):
    """A first layer, blocks, a last layer."""

    def __init__(self, inputs: int, width: int, classes: int, depth: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self._width, self._seed = width, seed
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList()
        self.last = nn.Linear(width, classes)
        for _ in range(depth):
            self.grow()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def grow(self) -> Block:
        """Add a block, the same on all ranks: its weights follow from the seed and its place."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + len(self.blocks))
        block = Block(self._width, generator).to(self.first.weight.device)
        self.blocks.append(block)
        return block


class Depth:
    """The knob ``depth``: how many blocks a stack has, and its optimizer's groups with them.

    Each block is a parameter group of its own, after that of the other layers, and a new one takes
    the first group's settings: state dicts of the same depth fit each other. A block that goes
    takes its state with it.

    Parameters
    ----------
    stack : Stack
        What grows and shrinks.
    optimizer : callable
        Makes the optimizer of the parameter groups.
    changed : callable, optional
        Called after a change: whoever holds the parameters, as DDP does, is to be made anew.
    """

    def __init__(
        self,
        stack: Stack,
        optimizer: Callable[[list[dict[str, object]]], torch.optim.Optimizer],
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._stack = stack
        self._changed = changed
        others = [*stack.first.parameters(), *stack.last.parameters()]
        self.optimizer = optimizer(
            [{"params": others}, *({"params": list(block.parameters())} for block in stack.blocks)]
        )

    def get(self) -> int:
        """Return how many blocks there are."""
        return len(self._stack.blocks)

    def set(self, depth: int) -> None:
        """Grow or shrink to so many blocks."""
        if depth < 0:
            raise ValueError(f"need depth >= 0, was {depth}")
        if depth == self.get():
            return
        groups = self.optimizer.param_groups
        while self.get() < depth:
            settings = {name: value for name, value in groups[0].items() if name != "params"}
            block = self._stack.grow()
            self.optimizer.add_param_group({**settings, "params": list(block.parameters())})
        while self.get() > depth:
            del self._stack.blocks[-1]
            for parameter in groups.pop()["params"]:
                self.optimizer.state.pop(parameter, None)
        self._changed()
