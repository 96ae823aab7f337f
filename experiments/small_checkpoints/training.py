"""A character model that goes on from a checkpoint in several ways, on the same batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import torch

from experiments.allreduce.model import CharacterModel, Workload, passages, set_rate
from experiments.compression.training import corpus
from torchloom_core.checkpoints.layout import Piece, Shard
from torchloom_core.checkpoints.small import Role, decode, encode, role_of
from torchloom_threadlet.checkpoint.pieces import Replica, own_pieces
from torchloom_threadlet.checkpoint.state import TrainingState

WORKLOAD = Workload(width=128, layers=4, context=48, batch=8, learning_rate=1e-3)
TRIED = 192
"""Passages of held-out text on which the loss is evaluated."""

SMALL, LINEAR, OTHER_BATCHES = "small", "second moment linear", "exact, other batches"
ARMS = (SMALL, LINEAR, OTHER_BATCHES)

Pieces = dict[str, tuple[Piece, bytes]]


@dataclass
class Outcome:
    """What came of one arm.

    Attributes
    ----------
    ratio : float
        Bytes of the checkpoint to those of a full one, both with their description.
    more : dict of int to float
        Steps after the restore: held-out loss beyond the undisturbed run's, nats a character.
    """

    ratio: float
    more: dict[int, float] = field(default_factory=dict)


class Training:
    """One training of a seed.

    Attributes
    ----------
    step : int
        The next step.
    """

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        self._text, held_out, characters = corpus()
        torch.manual_seed(seed)
        self.step, self.weights = 0, CharacterModel(WORKLOAD, characters)
        self._optimizer = torch.optim.AdamW(self.weights.parameters(), WORKLOAD.learning_rate)
        self._state = TrainingState([self.weights, self._optimizer])
        generator = torch.Generator().manual_seed(0)
        self._tried = passages(held_out, WORKLOAD.context, TRIED, generator)

    def run(self, steps: int, batches: int) -> None:
        """Train for so many steps on the batches of a seed."""
        for _ in range(steps):
            generator = torch.Generator().manual_seed(batches * 1_000_003 + self.step)
            batch = passages(self._text, WORKLOAD.context, WORKLOAD.batch, generator)
            self._optimizer.zero_grad()
            self.weights(batch).backward()
            set_rate(self._optimizer, WORKLOAD, self.step)
            self._optimizer.step()
            self.step += 1

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss on held-out text, nats a character."""
        return float(self.weights(self._tried))

    def save(self) -> tuple[Pieces, Shard]:
        """Return what a checkpoint has: the bytes of the tensors, and their description."""
        gathered = self._state.gather(0)
        found = own_pieces(gathered.tensors, frozenset(), Replica(0, 1), 0)
        pieces = {piece.name: (piece, tensor.numpy().tobytes()) for piece, tensor in found}
        described = tuple(piece for piece, _ in found)
        return pieces, Shard(rank=0, pieces=described, own=gathered.own, shared=gathered.shared)

    def load(self, tensors: Mapping[str, bytes | bytearray], shard: Shard) -> None:
        """Go on from a checkpoint."""
        shapes = {piece.name: piece.shape for piece in shard.pieces}
        dtypes = {piece.name: getattr(torch, piece.dtype) for piece in shard.pieces}
        fresh = self._state.target(shapes, dtypes)
        for name, tensor in fresh.items():
            data = bytearray(tensors[name])
            tensor.copy_(torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape))
        self._state.load(fresh, shard.shared, shard.own)


def through_codec(
    full: Pieces, now: Pieces, role: Callable[[str], Role]
) -> tuple[dict[str, bytearray], int]:
    """Return what a small checkpoint gives back, and its bytes."""
    restored, size = {}, 0
    for name, (piece, data) in now.items():
        base = memoryview(full[name][1]) if name in full else None
        encoded = encode(memoryview(data), piece.dtype, role(name), base).data
        restored[name] = bytearray(len(data))
        decode(encoded, base, memoryview(restored[name]))
        size += len(encoded)
    return restored, size


def trial(seed: int, steps: int, after: int) -> tuple[dict[str, Outcome], float]:
    """Return what came of each arm, and the undisturbed run's loss at the end.

    Parameters
    ----------
    steps : int
        To the full checkpoint.
    after : int
        From it to the small one, and from that to the end.
    """
    training = Training(seed)
    training.run(steps, seed)
    full, _ = training.save()
    training.run(after, seed)
    now, shard = training.save()
    trained = {f"model.{name}" for name, _ in training.weights.named_parameters()}
    exact = {name: data for name, (_, data) in now.items()}
    described, whole = len(msgspec.json.encode(shard)), sum(map(len, exact.values()))

    def small(name: str) -> Role:
        return role_of(name, trained)

    def linear(name: str) -> Role:
        return Role.MOMENT if small(name) is Role.SECOND_MOMENT else small(name)

    restores: dict[str, tuple[Mapping[str, bytes | bytearray], int]] = {
        "": (exact, whole),
        SMALL: through_codec(full, now, small),
        LINEAR: through_codec(full, now, linear),
        OTHER_BATCHES: (exact, whole),
    }
    losses: dict[str, dict[int, float]] = {}
    for arm, (tensors, _) in restores.items():
        training.load(tensors, shard)
        training.step = steps + after
        batches = seed + 500 if arm == OTHER_BATCHES else seed
        losses[arm] = {0: training.loss()}
        for stop in (after // 4, after):
            training.run(steps + after + stop - training.step, batches)
            losses[arm][stop] = training.loss()
    outcomes = {
        arm: Outcome(
            (restores[arm][1] + described) / (whole + described),
            {at: loss - losses[""][at] for at, loss in losses[arm].items()},
        )
        for arm in ARMS
    }
    return outcomes, losses[""][after]
