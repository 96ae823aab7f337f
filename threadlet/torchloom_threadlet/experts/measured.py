"""The tokens of a layer's experts, and the seconds that a worker computes its own in."""

import torch
from torch import Tensor

_KEPT = 0.9  # of the earlier means, in the running means
_BACKWARD = 2.0  # seconds of an expert's backward pass, for one of its forward pass
_LEAST_STEPS = 20


class Measured:
    """Counts of the present attempt at a step, and means over committed steps.

    Attributes
    ----------
    tokens_per_expert : tuple of int, (experts,)
        Of all workers, in the last committed step.
    seconds : float
        Forward and backward of the own experts in a step, in the mean.
    """

    def __init__(self, experts: int) -> None:
        self.tokens_per_expert: tuple[int, ...] = (0,) * experts
        self.seconds = 0.0
        self._means = torch.zeros(experts, dtype=torch.float64, device="cpu")
        self._attempted = torch.zeros(experts, dtype=torch.int64, device="cpu")
        self._attempted_s = 0.0
        self._steps = 0

    @property
    def tokens(self) -> tuple[float, ...]:
        """Tokens in a step, in the mean; none before there are steps to rest on."""
        return tuple(self._means.tolist()) if self._steps >= _LEAST_STEPS else ()

    def count(self, tokens: Tensor) -> None:
        """Count the tokens of a forward pass, ``(experts,)`` of int64."""
        self._attempted += tokens

    def took(self, forward_s: float) -> None:
        """Take the seconds of the forward pass of an own expert."""
        self._attempted_s += (1 + _BACKWARD) * forward_s

    def commit(self) -> None:
        """Take the present attempt as a step."""
        kept = _KEPT if self._steps else 0.0
        self.tokens_per_expert = tuple(self._attempted.tolist())
        self._means = kept * self._means + (1 - kept) * self._attempted.double()
        self.seconds = kept * self.seconds + (1 - kept) * self._attempted_s
        self._steps += 1
        self.forget()

    def forget(self) -> None:
        """Drop the present attempt."""
        self._attempted.zero_()
        self._attempted_s = 0.0
