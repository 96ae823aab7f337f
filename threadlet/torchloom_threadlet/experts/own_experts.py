"""The experts of one layer that a worker holds, and those that it keeps in memory for others."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchloom_core.floor.errors import AssignmentError
from torchloom_core.wire.assignment import Copy
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.layers.layer import Layer, mixed, state_bytes
from torchloom_threadlet.layers.layer_state import load_bytes, to_bytes

Factory = Callable[[], nn.Module]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], Any]


class OwnExperts:
    """Experts by their numbers in the assignment, each with an optimizer of its own.

    Attributes
    ----------
    present : dict of int to Layer
        Those that take part in the present generation.
    memory : dict of int to tuple of int and Tensor
        Of others' experts: the step of the state, and the state.
    """

    def __init__(
        self,
        numbers: range,
        new: Factory,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None,
        seed: int,
    ) -> None:
        self._numbers = numbers
        self._new, self._optimizer, self._scheduler, self._seed = new, optimizer, scheduler, seed
        self.present: dict[int, Layer] = {}
        self.memory: dict[int, tuple[int, Tensor]] = {}
        self._spare: dict[int, Layer] = {}
        """Given away in a generation without a commit yet: others may not have their copies."""

    @property
    def all(self) -> dict[int, Layer]:
        """All that this worker has whole."""
        return {**self._spare, **self.present}

    def create(self, number: int, *, training: bool = True) -> Layer:
        """Make an expert with its initial weights, which depend on its number alone."""
        if number not in self._numbers:
            first, last = self._numbers.start, self._numbers.stop - 1
            raise AssignmentError(f"experts: need {first} to {last}, was {number}")
        with torch.random.fork_rng(devices=()), torch.device("cpu"):
            torch.manual_seed(mixed(self._seed, number))
            module = self._new()
        layer = Layer(number, module.train(training))
        if layer.parameters:
            layer.optimizer = self._optimizer(layer.parameters)
            if self._scheduler is not None:
                layer.scheduler = self._scheduler(layer.optimizer)
        self.present[number] = layer
        return layer

    def state_of(self, number: int) -> Tensor:
        """Return an expert's weights, optimizer and scheduler, ``(bytes,)`` of uint8."""
        return to_bytes(self.all[number])

    def load(self, number: int, data: Tensor | None = None) -> None:
        """Make an expert of its state; of the one in memory, if none is given."""
        data = self.memory[number][1] if data is None else data
        layer = self.create(number)
        load_bytes(layer, data)

    def keep(self, own: Sequence[int], worker: str) -> None:
        """Take part with these; the others are dropped at the next commit."""
        there = self.all
        for number in own:
            if number not in there:
                raise AssignmentError(f"expert {number}: {worker} has no state of it")
            self.memory.pop(number, None)
        self.present = {number: there.pop(number) for number in own}
        self._spare = there

    def commit(self) -> None:
        """Apply the gradients of those that take part."""
        for layer in self.present.values():
            layer.commit()
        self._spare = {}

    def forget(self) -> None:
        """Drop all gradients."""
        for layer in self.present.values():
            for weight in layer.parameters:
                weight.grad = None

    def copy(self, copies: Sequence[Copy], workers: Sequence[str], peers: Peers) -> None:
        """Send and receive experts, in the order of ``copies``; ``workers`` are the ranks."""
        for number, source, target in ((c.layer, c.source, c.target) for c in copies):
            if number not in self._numbers:
                continue
            if workers[peers.rank] == source:
                if number not in self.all:
                    self.load(number)
                peers.send_state(self.state_of(number), workers.index(target), number)
            elif workers[peers.rank] == target:
                self.load(number, peers.receive_state(workers.index(source), number))

    def mirror(self, step: int, due: Iterable[tuple[int, int, int]], peers: Peers) -> None:
        """Send experts to a peer's memory.

        Parameters
        ----------
        step : int
            The committed step.
        due : iterable of tuple of int
            The numbers, and the ranks of holder and peer.
        """
        for number, source, target in due:
            if peers.rank == source:
                peers.send_state(self.state_of(number), target, number)
            elif peers.rank == target:
                self.memory[number] = step, peers.receive_state(source, number)

    def drop_older(self, step: int, kept: Collection[int]) -> None:
        """Drop states in memory of an earlier step: others have later ones; not those ``kept``."""
        self.memory = {
            number: (at, state)
            for number, (at, state) in self.memory.items()
            if at >= step or number in kept
        }

    def bytes_of_one(self) -> int:
        """Return the bytes of an expert's weights and optimizer state, about."""
        with torch.device("meta"):
            return state_bytes(self._new(), self._optimizer)
