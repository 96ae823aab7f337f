"""A mixture-of-experts layer whose experts are spread over workers by an assignment.

The pipeline's worker calls ``held``, ``create``, ``load``, ``copy`` and ``begin`` between two
generations, and ``idle``, ``reduce``, ``commit``, ``forget`` and ``mirror`` in one. Experts have
the numbers that they have in the assignment.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchloom_core.assignments.experts import imbalance, mirrors, worker_loads
from torchloom_core.floor.errors import AssignmentError, ConfigError
from torchloom_core.wire.assignment import Assignment, Copy
from torchloom_core.wire.generations import ExpertLayer
from torchloom_threadlet.experts.computing import computed
from torchloom_threadlet.experts.exchange import Members
from torchloom_threadlet.experts.measured import Measured
from torchloom_threadlet.experts.own_experts import (
    Factory,
    OptimizerFactory,
    OwnExperts,
    SchedulerFactory,
)
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.experts.reduction import reduce_experts
from torchloom_threadlet.experts.router import (
    AttachAuxiliaryLoss,
    TopKRouter,
    load_balancing_loss,
)
from torchloom_threadlet.layers.layer import Layer, mixed


class MoELayer(nn.Module):
    """Send each token to its experts, wherever they are, and add up their outputs.

    All workers of the assignment call it equally often, with or without tokens. ``parameters()``
    are the router's, which are dense, as those of other layers: their gradients are reduced over
    all workers. The experts have optimizers of their own, which move with them.

    The loss of a replica is the mean over its tokens, and gradients are means over the replicas,
    as in data parallelism. A worker that computes several replicas adds their losses.

    In a :mod:`pipeline <torchloom_threadlet.pipeline>` it is a part of a layer like any module, and
    called once in each forward pass.

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
    copies : int
        Workers that hold each expert, which costs an exchange of its gradients per step.
    mirror_every : int
        Steps after which an expert with one holder is copied to a peer's memory; 0: never.
    experts_per_worker : int
        How many a worker has memory for; 0: no more than it has to hold.

    Attributes
    ----------
    peers : Peers
        The workers of the present assignment.
    numbers : range
        Those of its experts.
    measured : Measured
        Means over committed steps.
    aux_loss : Tensor
        The last forward pass' auxiliary loss of this worker's tokens, weighted.
    aux_loss_scale : float
        Its weight besides: 1 / passes, if gradients of several are accumulated.
    """

    def __init__(
        self,
        hidden_size: int,
        expert: Factory,
        optimizer: OptimizerFactory,
        *,
        num_moe_experts: int,
        moe_router_topk: int = 1,
        moe_aux_loss_coeff: float = 0.01,
        scheduler: SchedulerFactory | None = None,
        seed: int = 0,
        first_expert: int = 0,
        copies: int = 1,
        mirror_every: int = 0,
        experts_per_worker: int = 0,
    ) -> None:
        super().__init__()
        if not 1 <= moe_router_topk <= num_moe_experts:
            raise ConfigError(
                f"experts: need 1 <= moe_router_topk <= {num_moe_experts}, was {moe_router_topk}"
            )
        for name, value, least in (
            ("first_expert", first_expert, 0),
            ("copies", copies, 1),
            ("mirror_every", mirror_every, 0),
            ("experts_per_worker", experts_per_worker, 0),
        ):
            if value < least:
                raise ConfigError(f"experts: need {name} >= {least}, was {value}")
        self.num_moe_experts = num_moe_experts
        self.moe_aux_loss_coeff = moe_aux_loss_coeff
        self.numbers = range(first_expert, first_expert + num_moe_experts)
        self._copies, self._mirror_every, self._room = copies, mirror_every, experts_per_worker
        self._own = OwnExperts(self.numbers, expert, optimizer, scheduler, seed)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(mixed(seed, first_expert, num_moe_experts))
            self.router = TopKRouter(hidden_size, num_moe_experts, moe_router_topk)
        self.peers = Peers(None)
        self._members: Members | None = None
        self._workers: tuple[str, ...] = ()
        self._replicas = 1
        self._holders: tuple[tuple[str, ...], ...] = ()
        self._mirrors: tuple[str, ...] = ()
        self._exists = torch.ones(num_moe_experts, dtype=torch.bool, device="cpu")
        self.measured = Measured(num_moe_experts)
        self.aux_loss = torch.zeros((), dtype=torch.float32, device="cpu")
        self.aux_loss_scale = 1.0

    @property
    def expert_model_parallel_size(self) -> int:
        """How many workers hold experts."""
        return len({worker for held in self._holders for worker in held})

    def described(self) -> ExpertLayer:
        """Return what the rendezvous has to know of its experts."""
        return ExpertLayer(self.num_moe_experts, self._own.bytes_of_one(), self._copies, self._room)

    def layers(self) -> list[Layer]:
        """Return the own experts of the present assignment, with their optimizers."""
        return list(self._own.present.values())

    def held(self) -> tuple[int, ...]:
        """Return the experts that this worker has whole: its own, and those just given away."""
        return tuple(sorted(self._own.all))

    def mirrored(self) -> dict[int, int]:
        """Return the experts whose state this worker has in its memory, and as of which step."""
        return {number: step for number, (step, _) in self._own.memory.items()}

    def create(self, expert: int) -> None:
        """Make an expert with its initial weights."""
        self._own.create(expert, training=self.training)

    def state_of(self, expert: int) -> Tensor:
        """Return a held expert's weights, optimizer and scheduler, ``(bytes,)`` of uint8."""
        return self._own.state_of(expert)

    def load(self, expert: int, data: Tensor | None = None) -> None:
        """Hold an expert with the state that another worker's :meth:`state_of` returned.

        Parameters
        ----------
        data : Tensor, optional
            If not given, the state that a peer has mirrored here.
        """
        self._own.load(expert, data)

    def begin(self, assignment: Assignment, peers: Peers) -> None:
        """Take part in an assignment from now on.

        Experts that this worker holds no more, and gradients, are dropped.

        Parameters
        ----------
        peers : Peers
            Its ranks are ``assignment.workers``, in this order.

        Raises
        ------
        AssignmentError
            If this worker has no state of an expert of its own, or no expert is left.
        """
        self.forget()
        first, stop = self.numbers.start, self.numbers.stop
        holders = assignment.experts[first:stop]
        workers = assignment.workers
        self.peers, size = peers, peers.size
        if len(workers) != size or len(holders) != self.num_moe_experts:
            raise AssignmentError(
                f"experts: need {len(workers)} ranks and {self.num_moe_experts} experts, "
                f"were {size} and {len(holders)}"
            )
        if not any(holders):
            raise AssignmentError("experts: need one that exists, were none")
        ranks = [[workers.index(worker) for worker in held] for held in holders]
        members = Members(self.peers, ranks)
        self._own.keep([first + place for place in members.own], workers[members.rank])
        self._members, self._workers, self._holders = members, workers, holders
        self._replicas = len(assignment.routes)
        self._exists = torch.tensor(list(map(bool, holders)), dtype=torch.bool, device="cpu")
        self._mirrors = mirrors(holders, workers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the experts' outputs, weighted by the router.

        Parameters
        ----------
        tokens : Tensor, (..., hidden_size)
            May be empty.
        """
        if tokens.is_meta:  # only the shape is asked for
            return tokens + self.router.weight.sum()
        members = self._present()
        rows = tokens.reshape(-1, tokens.shape[-1])
        routing = self.router(rows, self._exists)
        flat = routing.experts.reshape(-1)
        counts = members.gather(torch.bincount(flat, minlength=self.num_moe_experts))
        output = computed(rows, routing, counts, members, self._expert)
        if self.training and torch.is_grad_enabled():
            total = torch.tensor(counts, dtype=torch.int64, device="cpu").sum(dim=0)
            self.measured.count(total)
            topk = routing.experts.shape[1]
            balance = load_balancing_loss(routing.scores, total, self._exists, topk)
            self.aux_loss = balance.detach() * self.moe_aux_loss_coeff
            scale = self.moe_aux_loss_coeff * self.aux_loss_scale * self._replicas
            output = AttachAuxiliaryLoss.apply(output, balance * scale)  # type: ignore[no-untyped-call]
        return output.view_as(tokens)

    def without_tokens(self) -> Tensor:
        """Return the output for no token; its backward pass is collective, too."""
        output: Tensor = self(self.router.weight.new_zeros(0, self.router.weight.shape[1]))
        return output

    def reduce(self, passes: int = 1) -> None:
        """Reduce the gradients of each expert over its holders: collective, before the vote.

        Parameters
        ----------
        passes : int
            Forward passes of a replica, if its loss is their mean and gradients are their sum.
        """
        members = self._present()
        first = self.numbers.start
        weights = {n - first: layer.parameters for n, layer in self._own.present.items()}
        reduce_experts(weights, members.holders, members.peers, self._replicas * passes)

    def commit(self) -> None:
        """Apply the reduced gradients: all workers have voted for the step."""
        self._own.commit()
        self.measured.commit()
        self.forget()

    def forget(self) -> None:
        """Drop what an attempt at a step has left; the router's gradient is a dense one."""
        self._own.forget()
        self.measured.forget()

    def leave(self) -> None:
        """Let go of the group: its generation is over."""
        self._members, self.peers = None, Peers(None)

    def mirror(self, step: int) -> None:
        """Send experts to a peer's memory: collective, before a step; each at its own step.

        Parameters
        ----------
        step : int
            The last committed step; -1 before the first.
        """
        if step < 0 or not self._mirror_every:
            return
        members = self._present()
        every = zip(self.numbers, members.holders, self._mirrors, strict=True)
        due = [
            (number, holders[0], self._workers.index(peer))
            for number, holders, peer in every
            if peer and (step + number) % self._mirror_every == 0
        ]
        self._own.mirror(step, due, self.peers)
        self._own.drop_older(step - 2 * self._mirror_every, self._mirrored_here())

    def copy(self, copies: Sequence[Copy], workers: Sequence[str], peers: Peers) -> None:
        """Send and receive experts before an assignment begins: collective, in this order.

        Parameters
        ----------
        copies
            ``layer`` is the expert's number; those of other layers are left out.
        workers : sequence of str, (ranks,)
            Of the peers.
        """
        self._own.copy(copies, workers, peers)

    @property
    def tokens_per_expert(self) -> tuple[int, ...]:
        """Tokens of each expert, of all workers, in the last committed step; ``(experts,)``."""
        return self.measured.tokens_per_expert

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

    def _mirrored_here(self) -> set[int]:
        """Return the experts that this worker keeps in memory, also those that are left out."""
        own = self._workers[self.peers.rank]
        kept = zip(self.numbers, self._mirrors, self._holders, strict=True)
        return {number for number, peer, holders in kept if peer == own or not holders}

    def _present(self) -> Members:
        if self._members is None:
            raise AssignmentError("experts: need an assignment: call begin() first")
        return self._members

    def _expert(self, place: int, rows: Tensor) -> Tensor:
        began_s = time.perf_counter()
        outputs: Tensor = self._own.present[self.numbers[place]].module(rows)
        self.measured.took(time.perf_counter() - began_s)
        return outputs

    def train(self, mode: bool = True) -> "MoELayer":
        """Set the mode of the held experts, too."""
        super().train(mode)
        for layer in self._own.all.values():
            layer.module.train(mode)
        return self
