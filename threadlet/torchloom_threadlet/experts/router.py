"""The router of a mixture of experts: it sends each token to the experts with the best scores."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Routing(NamedTuple):
    """Where the tokens go.

    Attributes
    ----------
    probabilities : Tensor, (tokens, topk)
        The weight of each chosen expert's output.
    experts : Tensor, (tokens, topk)
        Their numbers, int64.
    scores : Tensor, (tokens, experts)
        Softmax over the experts that exist; 0 for the others.
    """

    probabilities: Tensor
    experts: Tensor
    scores: Tensor


class TopKRouter(nn.Module):
    """Choose the ``topk`` experts of each token, of those that exist.

    The softmax is over the existing experts alone, so that the others' share goes to them. With
    more than one expert a token, the chosen ones' probabilities add up to 1.

    Parameters
    ----------
    hidden_size : int
        Of a token.
    num_moe_experts : int
        Including those that do not exist at present.
    topk : int
        Experts of a token; fewer, if fewer exist.
    """

    def __init__(self, hidden_size: int, num_moe_experts: int, topk: int = 1) -> None:
        super().__init__()
        self.topk = topk
        # The defaults, as in any module: the device is meta where only sizes are asked for.
        device, dtype = torch.get_default_device(), torch.get_default_dtype()
        weight = torch.empty(num_moe_experts, hidden_size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight)
        nn.init.normal_(self.weight, std=hidden_size**-0.5)

    def forward(self, tokens: Tensor, exists: Tensor) -> Routing:
        """Route tokens.

        Parameters
        ----------
        tokens : Tensor, (tokens, hidden_size)
        exists : Tensor, (experts,)
            Of bool, at least one of them true.
        """
        logits = nn.functional.linear(tokens, self.weight).masked_fill(~exists, -torch.inf)
        scores = logits.softmax(dim=1)
        probabilities, experts = scores.topk(min(self.topk, int(exists.sum())), dim=1)
        if probabilities.shape[1] > 1:
            probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)
        return Routing(probabilities, experts, scores)


def load_balancing_loss(
    scores: Tensor, tokens_per_expert: Tensor, exists: Tensor, topk: int
) -> Tensor:
    """Return this worker's part of the auxiliary loss: the sum over the workers is the whole.

    The whole is 1 if all existing experts have equally many tokens, and does not depend on which
    worker has which tokens. Switch Transformer (Fedus et al., 2022), equation 4.

    Parameters
    ----------
    scores : Tensor, (tokens, experts)
        Of this worker's tokens.
    tokens_per_expert : Tensor, (experts,)
        Of all workers.
    exists : Tensor, (experts,)
        Of bool; an expert that is left out is not one with too few tokens.
    topk : int
        Experts of a token.
    """
    sent = tokens_per_expert.sum().clamp(min=1)
    shares = (tokens_per_expert.double() / sent).to(scores.dtype)
    return scores.sum(dim=0) @ shares * (exists.sum().double() * topk / sent).to(scores.dtype)


class AttachAuxiliaryLoss(torch.autograd.Function):
    """Pass an output on, and have its backward pass train the auxiliary loss, too.

    So the loss needs no way of its own through a pipeline (MoEAuxLossAutoScaler in megatron-core).
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, auxiliary: Tensor) -> Tensor:
        """Return the output."""
        ctx.save_for_backward(auxiliary)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the output and of the auxiliary loss."""
        (auxiliary,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(auxiliary)
