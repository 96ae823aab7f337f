"""A mixture-of-experts layer whose experts are spread over workers by an assignment.

The generation machine calls ``held``, ``state_of``, ``create``, ``load`` and ``begin`` between two
generations, and ``reduce``, ``commit``, ``forget`` and ``mirror`` in one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from torchloom_core.assignments.experts import imbalance, mirrors, worker_loads
from torchloom_core.floor.errors import AssignmentError, ConfigError
from torchloom_core.wire.assignment import Assignment, Copy
from torchloom_threadlet.experts.exchange import Counts, Members
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.experts.reduction import reduce_experts
from torchloom_threadlet.experts.router import (
    AttachAuxiliaryLoss,
    Routing,
    TopKRouter,
    load_balancing_loss,
)
from torchloom_threadlet.layers.layer import Layer, mixed
from torchloom_threadlet.layers.layer_state import load_bytes, to_bytes


class MoELayer(nn.Module):
    """Send each token to its experts, wherever they are, and add up their outputs.

    All workers of the assignment call it equally often, with or without tokens. ``parameters()``
    are the router's, which are dense, as those of other layers: their gradients are reduced over
    all workers. The experts have optimizers of their own, which move with them.

    The loss of a replica is the mean over its tokens, and gradients are means over the replicas,
    as in data parallelism. A worker that computes several replicas adds their losses.

    Parameters
    ----------
    hidden_size : int
        Of a token.
    expert : callable
        Returns a new expert: a module from ``(tokens, hidden_size)`` to the same.
    optimizer : callable
        Returns the optimizer of one expert's parameters.
    num_moe_experts : int
        Experts of the layer.
    moe_router_topk : int
        Experts of a token.
    moe_aux_loss_coeff : float
        Weight of the loss that balances the experts' tokens.
    scheduler : callable, optional
        Returns the learning rate scheduler of one expert's optimizer.
    seed : int
        Of the initial weights; those of an expert depend on nothing but it and its number.
    first_expert : int
        Number of the first expert in the assignment, if several layers have experts.

    Attributes
    ----------
    peers : Peers
        The workers of the present assignment.
    tokens_per_expert : tuple of int, (experts,)
        Of all workers, in the last committed step.
    aux_loss : Tensor
        The last forward pass' auxiliary loss of this worker's tokens, weighted.
    aux_loss_scale : float
        Set it to 1 / micro-batches if gradients are accumulated.
    """

    def __init__(
        self,
        hidden_size: int,
        expert: Callable[[], nn.Module],
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        num_moe_experts: int,
        moe_router_topk: int = 1,
        moe_aux_loss_coeff: float = 0.01,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        seed: int = 0,
        first_expert: int = 0,
    ) -> None:
        super().__init__()
        if not 1 <= moe_router_topk <= num_moe_experts:
            raise ConfigError(
                f"experts: need 1 <= moe_router_topk <= {num_moe_experts}, was {moe_router_topk}"
            )
        self.num_moe_experts = num_moe_experts
        self.moe_aux_loss_coeff = moe_aux_loss_coeff
        self._new, self._optimizer, self._scheduler = expert, optimizer, scheduler
        self._seed, self._first = seed, first_expert
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(mixed(seed, first_expert, num_moe_experts))
            self.router = TopKRouter(hidden_size, num_moe_experts, moe_router_topk)
        self._experts: dict[int, Layer] = {}
        self._memory: dict[int, tuple[int, Tensor]] = {}
        self.peers = Peers(None)
        self._members: Members | None = None
        self._workers: tuple[str, ...] = ()
        self._replicas = 1
        self._holders: tuple[tuple[str, ...], ...] = ()
        self._mirrors: tuple[str, ...] = ()
        self._exists = torch.ones(num_moe_experts, dtype=torch.bool)
        self._attempted = torch.zeros(num_moe_experts, dtype=torch.int64)
        self.tokens_per_expert: tuple[int, ...] = (0,) * num_moe_experts
        self.aux_loss = torch.zeros(())
        self.aux_loss_scale = 1.0

    @property
    def expert_model_parallel_size(self) -> int:
        """How many workers hold experts."""
        return len({worker for held in self._holders for worker in held})

    def held(self) -> tuple[int, ...]:
        """Return the experts that this worker holds, as the assignment numbers them."""
        return tuple(sorted(number + self._first for number in self._experts))

    def mirrored(self) -> dict[int, int]:
        """Return the experts whose state this worker has in its memory, and as of which step."""
        return {number + self._first: step for number, (step, _) in self._memory.items()}

    def create(self, expert: int) -> None:
        """Make an expert with its initial weights."""
        self._experts[expert - self._first] = self._made(expert)

    def state_of(self, expert: int) -> Tensor:
        """Return a held expert's weights, optimizer and scheduler, ``(bytes,)`` of uint8."""
        return to_bytes(self._experts[expert - self._first])

    def load(self, expert: int, data: Tensor | None = None) -> None:
        """Hold an expert with the state that another worker's :meth:`state_of` returned.

        Parameters
        ----------
        data : Tensor, optional
            If not given, the state that a peer has mirrored here.
        """
        layer = self._made(expert)
        load_bytes(layer, self._memory[expert - self._first][1] if data is None else data)
        self._experts[expert - self._first] = layer

    def begin(self, assignment: Assignment, group: ProcessGroup | None) -> None:
        """Take part in an assignment from now on.

        Experts that this worker holds no more, and gradients, are dropped.

        Parameters
        ----------
        group : ProcessGroup, optional
            Its ranks are ``assignment.workers``, in this order; None for one worker.

        Raises
        ------
        AssignmentError
            If this worker has no state of an expert of its own, or no expert is left.
        """
        self.forget()
        holders = assignment.experts[self._first : self._first + self.num_moe_experts]
        workers = assignment.workers
        self._use(group)
        size = self.peers.size
        if len(workers) != size or len(holders) != self.num_moe_experts:
            raise AssignmentError(
                f"experts: need {len(workers)} ranks and {self.num_moe_experts} experts, "
                f"were {size} and {len(holders)}"
            )
        if not any(holders):
            raise AssignmentError("experts: need one that exists, were none")
        ranks = [[workers.index(worker) for worker in held] for held in holders]
        members = Members(self.peers, ranks)
        for number in members.own:
            if number not in self._experts:
                raise AssignmentError(
                    f"expert {number + self._first}: {workers[members.rank]} has no state of it"
                )
        self._members, self._workers, self._holders = members, workers, holders
        self._replicas = len(assignment.routes)
        self._exists = torch.tensor([bool(held) for held in holders])
        self._experts = {number: self._experts[number] for number in members.own}
        self._mirrors = mirrors(holders, workers)
        own = workers[members.rank]
        self._memory = {
            number: kept
            for number, kept in self._memory.items()
            if self._mirrors[number] == own or not holders[number]
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the experts' outputs, weighted by the router.

        Parameters
        ----------
        tokens : Tensor, (..., hidden_size)
            May be empty.
        """
        members = self._present()
        rows = tokens.reshape(-1, tokens.shape[-1])
        routing = self.router(rows, self._exists)
        flat = routing.experts.reshape(-1)
        counts = members.gather(torch.bincount(flat, minlength=self.num_moe_experts))
        output = self._computed(rows, routing, counts, members)
        if self.training and torch.is_grad_enabled():
            total = torch.tensor(counts).sum(dim=0)
            self._attempted += total
            topk = routing.experts.shape[1]
            balance = load_balancing_loss(routing.scores, total, self._exists, topk)
            self.aux_loss = balance.detach() * self.moe_aux_loss_coeff
            scale = self.aux_loss_scale * self._replicas
            weighted = balance * (self.moe_aux_loss_coeff * scale)
            output = AttachAuxiliaryLoss.apply(  # type: ignore[no-untyped-call]
                output, weighted
            )
        return output.view_as(tokens)

    def reduce(self) -> None:
        """Reduce the gradients of each expert over its holders: collective, before the vote."""
        members = self._present()
        weights = {number: layer.parameters for number, layer in self._experts.items()}
        reduce_experts(weights, members.holders, members.peers, self._replicas)

    def commit(self) -> None:
        """Apply the reduced gradients: all workers have voted for the step."""
        for layer in self._experts.values():
            layer.commit()
        self.tokens_per_expert = tuple(self._attempted.tolist())
        self.forget()

    def forget(self) -> None:
        """Drop what an attempt at a step has left; the router's gradient is a dense one."""
        for layer in self._experts.values():
            for weight in layer.parameters:
                weight.grad = None
        self._attempted.zero_()

    def mirror(self, step: int, every: int) -> None:
        """Send experts to a peer's memory: collective, after a commit; each at its own step.

        Parameters
        ----------
        step : int
            The committed step.
        every : int
            An expert is sent at each ``every``-th step.
        """
        members = self._present()
        for number, peer in enumerate(self._mirrors):
            if not peer or (step + number) % every:
                continue
            source, target = members.holders[number][0], self._workers.index(peer)
            if members.rank == source:
                self.peers.send_state(to_bytes(self._experts[number]), target, number)
            elif members.rank == target:
                self._memory[number] = step, self.peers.receive_state(source, number)

    def copy(self, copies: Sequence[Copy], workers: Sequence[str], group: ProcessGroup) -> None:
        """Send and receive experts before an assignment begins: collective, in this order.

        Parameters
        ----------
        copies
            ``layer`` is the expert's number.
        workers : sequence of str, (ranks,)
            Of the group.
        """
        self._use(group)
        own = workers[self.peers.rank]
        for expert, source, target in ((c.layer, c.source, c.target) for c in copies):
            if own == source:
                self.peers.send_state(self.state_of(expert), workers.index(target), expert)
            elif own == target:
                self.load(expert, self.peers.receive_state(workers.index(source), expert))

    def measurements(self) -> dict[str, float]:
        """Return the last committed step's figures, for ``loom.step``.

        ``expert_tokens_max_over_mean`` is over the experts that exist,
        ``worker_tokens_max_over_mean`` over the workers that hold experts.
        """
        tokens = [
            count for count, held in zip(self.tokens_per_expert, self._holders, strict=True) if held
        ]
        holding = [worker for worker in self._workers if any(worker in h for h in self._holders)]
        loads = worker_loads(self.tokens_per_expert, self._holders, holding)
        return {
            "expert_tokens_max_over_mean": imbalance(tokens),
            "worker_tokens_max_over_mean": imbalance(loads),
        }

    def _use(self, group: ProcessGroup | None) -> None:
        if self.peers.group is not group:
            self.peers = Peers(group)

    def _present(self) -> Members:
        if self._members is None:
            raise AssignmentError("experts: need an assignment: call begin() first")
        return self._members

    def _made(self, expert: int) -> Layer:
        if not 0 <= expert - self._first < self.num_moe_experts:
            last = self._first + self.num_moe_experts - 1
            raise AssignmentError(f"experts: need {self._first} to {last}, was {expert}")
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(mixed(self._seed, expert))
            module = self._new()
        layer = Layer(expert, module.train(self.training))
        layer.optimizer = self._optimizer(layer.parameters)
        if self._scheduler is not None:
            layer.scheduler = self._scheduler(layer.optimizer)
        return layer

    def _computed(self, rows: Tensor, routing: Routing, counts: Counts, members: Members) -> Tensor:
        """Return the weighted sum of the experts' outputs, ``(tokens, hidden_size)``."""
        by_expert = routing.experts.reshape(-1).argsort(stable=True)
        parts = members.outgoing(counts)
        slots = torch.cat([by_expert[part] for of_worker in parts for part in of_worker])
        sent = [sum(part.stop - part.start for part in of_worker) for of_worker in parts]
        token = slots // routing.experts.shape[1]
        expected = members.incoming(counts)
        received = [sum(row) for row in expected]
        inputs = members.exchange(rows[token], sent, received)
        outputs = members.exchange(self._applied(inputs, expected, members.own), received, sent)
        weighted = outputs * routing.probabilities.reshape(-1)[slots].unsqueeze(1)
        return torch.zeros_like(rows).index_add(0, token, weighted)

    def _applied(self, inputs: Tensor, expected: list[list[int]], own: list[int]) -> Tensor:
        """Return the own experts' outputs, in the order of the inputs: by source, then expert."""
        parts = torch.split(inputs, [length for row in expected for length in row])
        done: list[Tensor] = list(parts)
        for place, number in enumerate(own):
            mine = range(place, len(parts), len(own))
            rows = torch.cat([parts[at] for at in mine])
            if len(rows):
                outputs = self._experts[number].module(rows)
                lengths = [len(parts[at]) for at in mine]
                for at, part in zip(mine, torch.split(outputs, lengths), strict=True):
                    done[at] = part
        # The empty first part has the backward pass reach the inputs on workers without a row.
        return torch.cat([inputs[:0], *done])

    def train(self, mode: bool = True) -> "MoELayer":
        """Set the mode of the held experts, too."""
        super().train(mode)
        for layer in self._experts.values():
            layer.module.train(mode)
        return self
