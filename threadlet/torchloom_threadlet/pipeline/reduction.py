"""The sum of each layer's gradients over the replicas, in their order whichever worker has them.

Each worker has one accumulator for each replica that it computes. Of the workers that hold the
same layers each sums a slice and sends the sum to the others: as few bytes as a ring, and bitwise
the same sum for every assignment.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchloom_core.wire.assignment import Assignment
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.pipeline.messages import Messages

_SLICES, _SUMS = 1 << 20, 2 << 20  # tags, apart from those of the pipeline's own messages
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Gradients:
    """Gradients of some layers, one after the other in one tensor.

    Attributes
    ----------
    number : int
        The same on all workers that hold these layers, and of these gradients alone.
    computed_by : tuple of int, (replicas,)
        The rank that computes these layers of each replica.
    flat : mapping of int to Tensor, (numbers,)
        Accumulator of each own replica.
    total : Tensor, (numbers,)
        Mean over all replicas once reduced.
    """

    number: int
    computed_by: tuple[int, ...]
    layers: tuple[Layer, ...]
    flat: Mapping[int, Tensor]
    total: Tensor

    def use(self, gradients: Tensor) -> None:
        """Let the parameters' gradients be those in ``gradients``."""
        at = 0
        for layer in self.layers:
            for weight in layer.parameters:
                if weight.dtype == gradients.dtype:
                    weight.grad = gradients[at : at + weight.numel()].view_as(weight)
                    at += weight.numel()


class Reduction:
    """The gradients of all layers of this worker, in one generation."""

    def __init__(
        self,
        assignment: Assignment,
        worker: str,
        held: Mapping[int, Layer],
        messages: Messages,
    ) -> None:
        self._messages, self._held = messages, held
        ranks = {name: rank for rank, name in enumerate(assignment.workers)}
        self._rank = ranks[worker]
        together: dict[tuple[tuple[int, ...], torch.dtype], list[Layer]] = defaultdict(list)
        for number in range(assignment.layers):
            by = tuple(
                next(ranks[stage.worker] for stage in route if number in stage.layers)
                for route in assignment.routes
            )
            if self._rank in by:
                for dtype in dict.fromkeys(weight.dtype for weight in held[number].parameters):
                    together[by, dtype].append(held[number])
        self.all = tuple(
            _gradients(
                layers[0].number * len(_DTYPES) + _DTYPES.index(dtype),
                self._rank,
                by,
                dtype,
                layers,
            )
            for (by, dtype), layers in together.items()
        )

    def begin(self) -> None:
        """Set all accumulators to zero."""
        for gradients in self.all:
            for flat in gradients.flat.values():
                flat.zero_()

    def use(self, replica: int) -> None:
        """Let the following backward passes add to this replica's accumulators."""
        for gradients in self.all:
            if replica in gradients.flat:
                gradients.use(gradients.flat[replica])

    def reduce(self) -> None:
        """Compute the mean over all replicas; a collective of the workers that share layers."""
        sums = [_Sum(gradients, self._rank, self._messages) for gradients in self.all]
        for each in sums:
            each.send_slices()
        for each in sums:
            each.send_sum()
        for each in sums:
            each.receive_sums()

    def squares(self) -> dict[int, float]:
        """Return the squared norm of each own layer's reduced gradients, by number."""
        self.use_total()
        return {
            layer.number: sum(
                float(torch.linalg.vector_norm(weight.grad, dtype=torch.float64)) ** 2
                for weight in layer.parameters
            )
            for layer in self._held.values()
        }

    def clip(self, norm: float, largest: float) -> None:
        """Scale the reduced gradients if their ``norm`` over all layers is above ``largest``."""
        if norm > largest > 0:
            for gradients in self.all:
                gradients.total.mul_(largest / norm)

    def use_total(self) -> None:
        """Let the parameters' gradients be the reduced ones."""
        for gradients in self.all:
            gradients.use(gradients.total)


def _gradients(
    number: int, rank: int, by: tuple[int, ...], dtype: torch.dtype, layers: list[Layer]
) -> Gradients:
    weights = [w for layer in layers for w in layer.parameters if w.dtype == dtype]
    count, device = sum(weight.numel() for weight in weights), weights[0].device
    flat = {
        replica: torch.zeros(count, dtype=dtype, device=device)
        for replica, computing in enumerate(by)
        if computing == rank
    }
    total = torch.zeros(count, dtype=dtype, device=device)
    return Gradients(number, by, tuple(layers), flat, total)


class _Sum:
    """One exchange: slices to the workers that sum them, sums to all."""

    def __init__(self, gradients: Gradients, rank: int, messages: Messages) -> None:
        self._of, self._rank, self._messages = gradients, rank, messages
        self._holders = sorted(set(gradients.computed_by))
        slices = gradients.total.tensor_split(len(self._holders))
        self._sums = dict(zip(self._holders, slices, strict=True))

    def _slice(self, flat: Tensor, rank: int) -> Tensor:
        return flat.tensor_split(len(self._holders))[self._holders.index(rank)]

    def _tag(self, kind: int, replica: int = 0) -> int:
        return kind + self._of.number * len(self._of.computed_by) + replica

    def send_slices(self) -> None:
        for peer in self._holders:
            if peer != self._rank:
                for replica, flat in self._of.flat.items():
                    part = self._slice(flat, peer)
                    self._messages.send(part, peer, self._tag(_SLICES, replica))

    def send_sum(self) -> None:
        """Sum the own slice over all replicas, and send it."""
        mine = self._sums[self._rank]
        for replica, rank in enumerate(self._of.computed_by):
            if rank == self._rank:
                part = self._slice(self._of.flat[replica], rank)
            else:
                part = torch.empty_like(mine)
                self._messages.receive(part, rank, self._tag(_SLICES, replica))
            mine.copy_(part) if replica == 0 else mine.add_(part)
        mine.div_(len(self._of.computed_by))
        for rank in self._holders:
            if rank != self._rank:
                self._messages.send(mine, rank, self._tag(_SUMS))

    def receive_sums(self) -> None:
        for rank in self._holders:
            if rank != self._rank:
                self._messages.receive(self._sums[rank], rank, self._tag(_SUMS))
