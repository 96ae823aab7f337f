"""A character model that three ranks train, their gradients summed by the codecs themselves."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from experiments.allreduce import model as models
from experiments.allreduce.model import CharacterModel, Workload, give, gradient_of, passages
from torchloom_threadlet.compression.codecs import Codec, Memory
from torchloom_threadlet.compression.collectives import (
    Peers,
    Reduction,
    reduce_together,
    ring_bytes,
)
from torchloom_threadlet.compression.modes import make_codecs

RANKS = 3
WORKLOAD = Workload(width=64, layers=2, context=48, batch=12, learning_rate=3e-3)
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


@cache
def corpus() -> tuple[Tensor, Tensor, int]:
    """Return the text for training, the rest, and how many different characters there are."""
    text, characters = models.corpus()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:], characters


def train(mode: str, seed: int, steps: int, every: int) -> Curve:
    """Train for ``steps``, from the same weights and on the same batches in every mode."""
    torch.set_num_threads(1)
    text, held_out, characters = corpus()
    torch.manual_seed(seed)
    model = CharacterModel(WORKLOAD, characters)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, WORKLOAD.learning_rate)
    batches = torch.Generator().manual_seed(seed)
    context, batch = WORKLOAD.context, WORKLOAD.batch
    tried = passages(held_out, context, 40 * batch, torch.Generator().manual_seed(0))
    codec = _codec(mode, parameters)
    memories = [Memory()] * RANKS
    sent = 0
    curve = Curve([], [], 0.0)
    for step in range(steps + 1):
        if step % every == 0:
            with torch.no_grad():
                curve.steps.append(step)
                curve.loss.append(model(tried).item())
        gradients = [
            gradient_of(model(passages(text, context, batch, batches)), parameters)
            for _ in range(RANKS)
        ]
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
        give(parameters, total / RANKS)
        models.set_rate(optimizer, WORKLOAD, step)
        optimizer.step()
    return Curve(curve.steps, curve.loss, sent / 1e6)


def _codec(mode: str, parameters: list[nn.Parameter]) -> Codec | None:
    if mode == SQUARE:
        return make_codecs(0.01, 4)["powersgd"]
    return make_codecs(0.01, 4, parameters).get(mode)


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
