"""DeMo, decoupled momentum: an optimizer that sends the fast part of its momentum, not gradients.

Peng, Quesnelle, Kingma: DeMo: Decoupled Momentum Optimization, 2024, arXiv:2411.19870. Each worker
has a momentum of its own. At each step it sends the few largest coefficients of a discrete cosine
transform of it, chunk by chunk, and removes them; the unsent part stays for later steps.
The update is the mean of all that is sent, or its sign.

With torchft the model is not wrapped, since no gradient is reduced::

    inner = DecoupledMomentum(model.parameters(), lr=1e-3, pg=pg, manager=manager)
    optimizer = Optimizer(manager, inner)
    while training:
        optimizer.zero_grad()
        loss_of(model).backward()
        inner.exchange()
        optimizer.step()
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]
from torch.optim import Optimizer

_HIGHEST_CHUNK = 181
"""In a chunk twice this long the places would not fit in 16 bits."""


class _Sent(NamedTuple):
    """The result of an exchange: per parameter the update, and the momentum that is left."""

    updates: list[Tensor]
    momenta: list[Tensor]


class DecoupledMomentum(Optimizer):
    """Trains by the part of their momenta that the workers send each other.

    All ranks make the same update, to the bit. The momentum is the worker's own, and not in the
    state dict: a joiner that took over its peer's would send it a second time. Parameters
    without a gradient count as having a gradient of 0.

    Parameters
    ----------
    params : iterable
        Of parameters or of groups; floating point, whole on each worker.
    lr : float
        Learning rate. With ``sign`` it is the change of each weight.
    pg : torch.distributed.ProcessGroup
        For the gather; torchft's, or any. None for a single worker.
    manager : torchft.Manager, optional
        Gets errors, so that the step is not committed, and knows which workers take part.
    momentum_decay : float
        The factor of the momentum from step to step.
    weight_decay : float
        Decoupled, as AdamW's.
    chunk : int
        Length of a chunk along each of two dimensions, at most 181.
    top_k : int
        Coefficients sent of each chunk.
    sign : bool
        Whether the update is the sign of the mean, and not the mean itself.

    Attributes
    ----------
    bytes_sent : int
        Payload that this worker sent in the last exchange, once to each other worker.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        pg: Any = None,
        manager: Any = None,
        momentum_decay: float = 0.999,
        weight_decay: float = 0.0,
        chunk: int = 64,
        top_k: int = 32,
        sign: bool = True,
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"need {name} >= 0, was {value}")
        if not 0 <= momentum_decay <= 1:
            raise ValueError(f"need 0 <= momentum_decay <= 1, was {momentum_decay}")
        if not 1 <= chunk <= _HIGHEST_CHUNK:
            raise ValueError(f"need 1 <= chunk <= {_HIGHEST_CHUNK}, was {chunk}")
        if top_k < 1:
            raise ValueError(f"need top_k >= 1, was {top_k}")
        defaults = {"lr": lr, "momentum": momentum_decay, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"sign": sign})
        self._pg, self._manager = pg, manager
        self._chunk, self._top_k = chunk, top_k
        self._momenta: dict[Tensor, Tensor] = {}
        self._sent: _Sent | None = None
        self.bytes_sent = 0

    @torch.no_grad()
    def exchange(self) -> None:
        """Send the largest coefficients of the momentum, and receive those of the others.

        Call it after the backward pass and before ``step``, which otherwise calls it. An error
        goes to the Manager, if there is one, and the step is not committed: then the momentum
        stays as it was before.
        """
        if self._manager is not None:
            self._manager.wait_quorum()
        try:
            self._sent = self._exchanged()
        except Exception as error:
            self._sent = None
            if self._manager is None:
                raise
            self._manager.report_error(error)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights by the result of the exchange."""
        if self._sent is None:
            self.exchange()
        sent, self._sent = self._sent, None
        if sent is None:
            return
        updates = iter(sent.updates)
        for group in self.param_groups:
            for parameter in group["params"]:
                update = next(updates)
                if group["weight_decay"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update.sign_() if group["sign"] else update, alpha=-group["lr"])
        if self._takes_part():
            self._momenta = dict(zip(self._parameters(), sent.momenta, strict=True))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and the exchange of a step that was not committed."""
        self._sent = None
        super().zero_grad(set_to_none)

    def _exchanged(self) -> _Sent:
        values, places, momenta, layouts = [], [], [], []
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self._next_momentum(parameter, group["momentum"])
                layout = _Layout(momentum.shape, self._chunk)
                coefficients = layout.transformed(momentum)
                top = coefficients.abs().topk(min(self._top_k, coefficients.shape[1])).indices
                value = coefficients.gather(1, top)
                sent = torch.zeros_like(coefficients).scatter_(1, top, value)
                momenta.append(momentum - layout.restored(sent))
                layouts.append(layout)
                values.append(value)
                places.append(top)
        if not self._takes_part():
            values = [torch.zeros_like(value) for value in values]
        all_values = torch.cat([value.flatten() for value in values])
        all_places = torch.cat([place.flatten() for place in places]).to(torch.int16)
        payload = torch.cat([all_values.view(torch.uint8), all_places.view(torch.uint8)])
        payloads = self._gathered(payload)
        contributors = self._manager.num_participants() if self._manager else len(payloads)
        counts = [value.numel() for value in values]
        received = [_unpacked(payload, counts) for payload in payloads]
        updates = []
        for number, (layout, top) in enumerate(zip(layouts, places, strict=True)):
            total = torch.zeros(len(top), layout.length, dtype=torch.float32, device=top.device)
            for their_values, their_places in received:  # in rank order: the same sum everywhere
                value = their_values[number].view(top.shape)
                place = their_places[number].view(top.shape).long()
                total += torch.zeros_like(total).scatter_(1, place, value)
            updates.append(layout.restored(total / contributors))
        return _Sent(updates, momenta)

    def _gathered(self, payload: Tensor) -> list[Tensor]:
        """Return the payload of each worker, in rank order."""
        workers = 1 if self._pg is None else self._pg.size()
        self.bytes_sent = payload.numel() * (workers - 1)
        if workers == 1:
            return [payload]
        payloads = [torch.empty_like(payload) for _ in range(workers)]
        self._pg.allgather([payloads], [payload], AllgatherOptions()).wait()
        return payloads

    def _next_momentum(self, parameter: Tensor, decay: float) -> Tensor:
        momentum = self._momenta.get(parameter)
        gradient = parameter.grad
        fresh = torch.zeros_like(parameter) if gradient is None else gradient.detach().clone()
        return fresh if momentum is None else fresh.add_(momentum, alpha=decay)

    def _parameters(self) -> Iterable[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _takes_part(self) -> bool:
        return self._manager is None or self._manager.is_participating()


class _Layout:
    """How a tensor is cut into chunks, and the chunks into a matrix, one per row.

    A tensor of more than two dimensions is a matrix of its first against the others. Chunks at the
    edges are filled up with zeros.
    """

    def __init__(self, shape: torch.Size, chunk: int) -> None:
        self._shape = shape
        self._high = shape[0] if len(shape) > 1 else 1
        self._wide = max(math.prod(shape) // max(self._high, 1), 1)
        self._rows, self._columns = min(chunk, self._high), min(chunk, self._wide)
        self._down = -(-self._high // self._rows)
        self._across = -(-self._wide // self._columns)
        self.length = self._rows * self._columns

    def transformed(self, tensor: Tensor) -> Tensor:
        """Return the coefficients of a tensor's chunks, shape ``(chunks, length)``."""
        full = tensor.new_zeros(
            self._down * self._rows, self._across * self._columns, dtype=torch.float32
        )
        full[: self._high, : self._wide] = tensor.reshape(self._high, self._wide)
        chunks = full.view(self._down, self._rows, self._across, self._columns).transpose(1, 2)
        left, right = _cosines(self._rows).to(full), _cosines(self._columns).to(full)
        return (left @ chunks @ right.T).reshape(-1, self.length)

    def restored(self, coefficients: Tensor) -> Tensor:
        """Return the tensor whose chunks have these coefficients."""
        chunks = coefficients.view(self._down, self._across, self._rows, self._columns)
        left, right = _cosines(self._rows).to(chunks), _cosines(self._columns).to(chunks)
        full = (left.T @ chunks @ right).transpose(1, 2)
        full = full.reshape(self._down * self._rows, self._across * self._columns)
        return full[: self._high, : self._wide].reshape(self._shape)


@lru_cache(maxsize=64)
def _cosines(length: int) -> Tensor:
    """Return the orthonormal matrix of the discrete cosine transform (DCT-II)."""
    place = torch.arange(length, dtype=torch.float64, device="cpu")
    matrix = torch.cos(math.pi / length * (place + 0.5) * place[:, None]) * math.sqrt(2 / length)
    matrix[0] /= math.sqrt(2)
    return matrix.float()


def _unpacked(payload: Tensor, counts: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the values and the places of one worker, per parameter."""
    cut = 4 * sum(counts)
    values = torch.split(payload[:cut].view(torch.float32), counts)
    places = torch.split(payload[cut:].view(torch.int16), counts)
    return list(values), list(places)
