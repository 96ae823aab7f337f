"""A character model of any size, its text, and the batches that a rank sees at a step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

WARM_UP = 20
BETAS = (0.9, 0.95)
"""AdamW's, as large models have them: with .999 it is a thousand steps until the size of other
gradients is known, and a change of the mode costs as many."""
TOPK_SHARE, POWERSGD_RANK = 0.01, 2
"""Of the process group; with four columns PowerSGD is ahead of all modes on slow links and near
them on fast ones, and there is less to choose."""

LEARNT, TRIED = 768, 128
"""Number of passages to memorise, and of those on which the loss is evaluated."""


@dataclass(frozen=True)
class Workload:
    """The workload.

    Attributes
    ----------
    width, layers : int
        Of the transformer: about ``12 * layers * width**2`` parameters.
    context, batch : int
        Characters of a stretch of text, and stretches a rank and step.
    learning_rate : float
        After a warm-up.
    momentum : float
        SGD's; with 0 it is AdamW that learns.
    """

    width: int = 384
    layers: int = 4
    context: int = 32
    batch: int = 1
    learning_rate: float = 5e-4
    momentum: float = 0.0


class CharacterModel(nn.Module):
    """A transformer that predicts the next character."""

    def __init__(self, workload: Workload, characters: int) -> None:
        super().__init__()
        width, context = workload.width, workload.context
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, workload.layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text: Tensor) -> Tensor:
        """Return the mean loss over ``text``, of shape (batch, context + 1), nats a character."""
        before, after = text[:, :-1], text[:, 1:]
        hidden = self.characters(before) + self.places.weight
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        return functional.cross_entropy(self.out(hidden).flatten(0, 1), after.flatten())


def corpus() -> tuple[Tensor, int]:
    """Return Python's language reference, as it comes with Python, and how many characters differ.

    The text is of shape (characters,), each by its number in their order.
    """
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    number = {character: place for place, character in enumerate(characters)}
    return torch.tensor([number[character] for character in text]), len(characters)


def passages(text: Tensor, context: int, size: int, generator: torch.Generator) -> Tensor:
    """Return random parts of a text, of shape (size, context + 1)."""
    starts = torch.randint(len(text) - context - 1, (size, 1), generator=generator)
    return text[starts + torch.arange(context + 1)]


class Text:
    """Passages of Python's language reference.

    They are few and memorised, so that the loss falls from the beginning of a run to its end, and
    the noise of unseen text does not decide the ranking.
    """

    def __init__(self, workload: Workload) -> None:
        text, self.characters = corpus()
        generator = torch.Generator().manual_seed(0)
        self._stretches = passages(text, workload.context, LEARNT, generator)
        self._batch = workload.batch

    def batch(self, seed: int, step: int, rank: int) -> Tensor:
        """Return a rank's batch at a step, (batch, context + 1): the same in every mode."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 64 + rank)
        return self._stretches[torch.randint(LEARNT, (self._batch,), generator=generator)]

    def tried(self) -> Tensor:
        """Return the evaluation batch, (tried, context + 1): always the same."""
        return self._stretches[:TRIED]


def build(workload: Workload, text: Text, seed: int) -> CharacterModel:
    """Return the model of a seed, as every rank begins with it."""
    torch.manual_seed(seed)
    return CharacterModel(workload, text.characters)


def optimizer_of(workload: Workload, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer."""
    if workload.momentum:
        return torch.optim.SGD(parameters, workload.learning_rate, workload.momentum)
    return torch.optim.AdamW(parameters, workload.learning_rate, BETAS, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, workload: Workload, step: int) -> None:
    """Set the rate of a step, counted from 0."""
    for group in optimizer.param_groups:
        group["lr"] = workload.learning_rate * min(1.0, (step + 1) / WARM_UP)


def gradient_of(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the gradient of all parameters, one after the other, of shape (numbers,)."""
    return torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, parameters)])


def give(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    """Set the gradients of the parameters from that of all."""
    parts = gradient.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape)
