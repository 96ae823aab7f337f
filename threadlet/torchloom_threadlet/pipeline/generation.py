"""One generation of a worker: its routes, its gradients, and the vote that commits a step."""

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torchloom_core.wire.assignment import Assignment
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.pipeline.boundaries import Values
from torchloom_threadlet.pipeline.expert_parts import Experts
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.messages import Messages
from torchloom_threadlet.pipeline.reduction import Reduction
from torchloom_threadlet.pipeline.routes import Route
from torchloom_threadlet.pipeline.user_code import of_the_user

Batch = Callable[[int], tuple[Any, Any]]
"""Returns inputs and targets of a replica, for the present step."""

_UNKNOWN = 2**63 - 1
_KEPT_TIMES = 0.8  # of the earlier measurement of a layer's seconds, in its running mean


class Shared(NamedTuple):
    """What all workers know of a step once they have reduced it.

    Attributes
    ----------
    losses : tuple of float, (replicas,)
    grad_norm : float
        Of all layers, before clipping.
    ballots : tuple of int
        The minima of all ballots.
    """

    losses: tuple[float, ...]
    grad_norm: float
    ballots: tuple[int, ...]


class Generation:
    """The own part of an assignment, once the group of all its workers is formed."""

    def __init__(
        self,
        program: Program,
        assignment: Assignment,
        worker: str,
        held: Mapping[int, Layer],
        shapes: tuple[Values, ...],
        messages: Messages,
    ) -> None:
        self.assignment = assignment
        self.reduction = Reduction(assignment, worker, held, messages)
        self.experts = Experts(held.values())
        self._held, self._program, self._messages = held, program, messages
        self._routes = [
            Route(program, assignment, replica, worker, held, shapes, messages)
            for replica, route in enumerate(assignment.routes)
            if worker in [stage.worker for stage in route]
        ]
        counts = Counter(stage.worker for route in assignment.routes for stage in route)
        self._at_once = [
            sum(count > done for count in counts.values()) for done in range(max(counts.values()))
        ]
        """Replicas that all workers compute first, then second, and so on."""
        self.layer_s: dict[int, float] = {}
        self.computed_s = 0.0
        """Of the present step: forward and backward of all own layers and micro-batches."""

    def compute(self, step: int, batch: Batch) -> dict[int, float]:
        """Compute all own routes, and return the losses known here by replica."""
        self.reduction.begin()
        self.experts.forget()
        self.computed_s = 0.0
        losses = {}
        for route, at_once in zip(self._routes, self._at_once, strict=False):
            self.experts.share(at_once / len(self.assignment.routes))
            self.reduction.use(route.replica)
            data = (None, None)
            if route.is_first or route.is_last:
                with of_the_user():
                    data = batch(route.replica)
            if (loss := route.run(step, data)) is not None:
                losses[route.replica] = loss
            self._measure(route)
        for at_once in self._at_once[len(self._routes) :]:
            self.experts.share(at_once / len(self.assignment.routes))
            self.experts.idle(self._program.micro_batches)
        return losses

    def reduce(self) -> None:
        """Reduce all gradients over the workers that have the same; collective."""
        self.reduction.reduce()
        self.experts.reduce(self._program.micro_batches)

    def _measure(self, route: Route) -> None:
        for number, seconds in route.seconds().items():
            before = self.layer_s.get(number, seconds)
            self.layer_s[number] = _KEPT_TIMES * before + (1 - _KEPT_TIMES) * seconds
            self.computed_s += seconds * self._program.micro_batches

    def share(self, losses: Mapping[int, float], ballot: Sequence[int]) -> Shared:
        """Share what is known here of the step; a collective of the generation.

        Once it returns, all workers have reduced the gradients of this step.
        """
        replicas, layers = len(self.assignment.routes), self.assignment.layers
        squares = self.reduction.squares()
        own = [_bits(losses.get(replica)) for replica in range(replicas)]
        own += [_bits(squares.get(layer)) for layer in range(layers)]
        found = self._messages.agree([*own, *ballot])
        norm = math.sqrt(sum(map(_number, found[replicas : replicas + layers])))
        ballots = tuple(found[replicas + layers :])
        return Shared(tuple(map(_number, found[:replicas])), norm, ballots)

    def commit(self) -> None:
        """Apply the reduced gradients to all own layers and experts."""
        self.reduction.use_total()
        for layer in self._held.values():
            layer.commit()
        self.experts.commit()


def vote(messages: Messages, step: int, asked: int) -> int:
    """Vote for a step, whose gradients are reduced here; a collective of the generation.

    Parameters
    ----------
    asked : int
        The next generation that this worker has been asked to stop for, 0 for none.

    Returns
    -------
    int
        The generation that all have been asked to stop for, 0 for none.

    Raises
    ------
    RuntimeError
        If a worker has ended, or votes for another step.
    """
    least, most, stop = messages.agree([step, -step, asked])
    if least != -most:
        raise RuntimeError(f"workers vote for steps {least} and {-most}")
    return stop


def _bits(value: float | None) -> int:
    return _UNKNOWN if value is None else int(struct.unpack("<q", struct.pack("<d", value))[0])


def _number(bits: int) -> float:
    """Return the float of these bits; NaN where no worker has it."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
