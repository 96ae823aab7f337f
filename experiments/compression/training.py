"""A character model that three ranks train, their gradients summed by the codecs themselves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchloom_threadlet.compression.codecs import Codec, Memory
from torchloom_threadlet.compression.collectives import (
    Peers,
    Reduction,
    reduce_together,
    ring_bytes,
)
from torchloom_threadlet.compression.modes import make_codecs

RANKS = 3
CONTEXT = 48
BATCH = 12
WIDTH = 64
HEADS = 4
LAYERS = 2
LEARNING_RATE = 3e-3
WARM_UP = 20
SQUARE = "powersgd, square"
"""PowerSGD that knows nothing of the model, and takes the bucket for one square matrix."""


@dataclass(frozen=True)
class Curve:
    """One training.

    Attributes
    ----------
    steps : list of int
        At which the held-out text was tried.
    loss : list of float
        Nats a character there.
    sent_mb : float
        Megabytes that a rank has sent in all.
    """

    steps: list[int]
    loss: list[float]
    sent_mb: float


class CharacterModel(nn.Module):
    """A transformer of two layers that predicts the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def loss(self, text: Tensor) -> Tensor:
        """Return the mean loss over ``text``, of shape (batch, CONTEXT + 1)."""
        before, after = text[:, :-1], text[:, 1:]
        hidden = self.characters(before) + self.places.weight
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        return functional.cross_entropy(self.out(hidden).flatten(0, 1), after.flatten())


@cache
def corpus() -> tuple[Tensor, Tensor, int]:
    """Return Python's language reference, as it comes with Python: training text, the rest, and
    how many different characters there are.
    """  # noqa: D205
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    number = {character: place for place, character in enumerate(characters)}
    numbers = torch.tensor([number[character] for character in text])
    cut = len(numbers) * 9 // 10
    return numbers[:cut], numbers[cut:], len(characters)


def train(mode: str, seed: int, steps: int, every: int) -> Curve:
    """Train for ``steps``, from the same weights and on the same batches in every mode."""
    torch.set_num_threads(1)
    text, held_out, characters = corpus()
    torch.manual_seed(seed)
    model = CharacterModel(characters)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE)
    batches = torch.Generator().manual_seed(seed)
    tried = _batch(held_out, 40 * BATCH, torch.Generator().manual_seed(0))
    codec = _codec(mode, parameters)
    memories = [Memory()] * RANKS
    sent = 0
    curve = Curve([], [], 0.0)
    for step in range(steps + 1):
        if step % every == 0:
            with torch.no_grad():
                curve.steps.append(step)
                curve.loss.append(model.loss(tried).item())
        gradients = []
        for _ in range(RANKS):
            loss = model.loss(_batch(text, BATCH, batches))
            grads = torch.autograd.grad(loss, parameters)
            gradients.append(torch.cat([grad.reshape(-1) for grad in grads]))
        if codec is None:
            total = torch.stack(gradients).sum(0)
            sent += ring_bytes(total, RANKS)
        else:
            counts = [0] * RANKS
            ended = reduce_together(
                [
                    _counted(codec.reduce(gradient, memory, Peers(rank, RANKS)), counts, rank)
                    for rank, (gradient, memory) in enumerate(zip(gradients, memories, strict=True))
                ]
            )
            total, memories = ended[0][0], [memory for _, memory in ended]
            sent += counts[0]
        _give(parameters, total / RANKS)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP)
        optimizer.step()
    return Curve(curve.steps, curve.loss, sent / 1e6)


def _codec(mode: str, parameters: list[nn.Parameter]) -> Codec | None:
    if mode == SQUARE:
        return make_codecs(0.01, 4)["powersgd"]
    return make_codecs(0.01, 4, parameters).get(mode)


def _batch(text: Tensor, size: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (size, 1), generator=generator)
    return text[starts + torch.arange(CONTEXT + 1)]


def _give(parameters: list[nn.Parameter], flat: Tensor) -> None:
    for parameter, part in zip(
        parameters, flat.split([math.prod(each.shape) for each in parameters]), strict=True
    ):
        parameter.grad = part.view(parameter.shape)


def _counted(
    reduction: Reduction[tuple[Tensor, Memory]], counts: list[int], rank: int
) -> Reduction[tuple[Tensor, Memory]]:
    """Count what a rank sends."""
    answer: Tensor | None = None
    while True:
        try:
            call = next(reduction) if answer is None else reduction.send(answer)
        except StopIteration as stop:
            return stop.value
        counts[rank] += call.sent_bytes(RANKS)
        answer = yield call


def every_mode() -> Iterator[str]:
    """Yield what is tried, the reference first."""
    yield "none"
    yield from make_codecs(0.01, 4)
    yield SQUARE
