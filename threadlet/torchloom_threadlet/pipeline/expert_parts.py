"""The experts of a worker's layers, in the generations of a pipeline."""

from collections.abc import Iterable

import torch
from torch import nn

from torchloom_core.assignments.experts import Placed
from torchloom_core.floor.errors import ConfigError, PipelineError
from torchloom_core.wire.generations import Begin, ExpertLayer, ExpertState, Mirror
from torchloom_threadlet.experts.moe_layer import MoELayer
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.layers.layer import Layer


def expert_layers(layers: Iterable[nn.Module]) -> tuple[ExpertLayer, ...]:
    """Return what the rendezvous has to know of the layers with experts.

    Raises
    ------
    ConfigError
        If the experts of all layers are not numbered one after the other.
    """
    found, expected = [], 0
    for number, layer in enumerate(layers):
        for module in _with_experts(layer):
            if module.numbers.start != expected:
                raise ConfigError(
                    f"experts: layer {number}: need first_expert={expected}, "
                    f"was {module.numbers.start}"
                )
            expected = module.numbers.stop
            found.append(module.described())
    return tuple(found)


class Experts:
    """All experts that a worker has of some layers."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self._modules = tuple(m for layer in layers for m in _with_experts(layer.module))

    @property
    def own(self) -> list[Layer]:
        """Those of the present assignment, each with its optimizer."""
        return [layer for module in self._modules for layer in module.layers()]

    def held(self, *, only_own: bool) -> tuple[int, ...]:
        """Return those that this worker has whole.

        Parameters
        ----------
        only_own
            Leave out those that the present generation has given away.
        """
        if only_own:
            return tuple(sorted(layer.number for layer in self.own))
        return tuple(number for module in self._modules for number in module.held())

    def first_of_each(self, worker: str) -> Placed:
        """Return holders with which a worker alone has one expert of each layer."""
        first = {module.numbers.start for module in self._modules}
        count = max((module.numbers.stop for module in self._modules), default=0)
        return tuple((worker,) if number in first else () for number in range(count))

    def state(self) -> ExpertState:
        """Return what is measured, and what is kept for others."""
        tokens = [module.measured.tokens for module in self._modules]
        return ExpertState(
            tokens=tuple(count for each in tokens for count in each) if all(tokens) else (),
            seconds=sum(module.measured.seconds for module in self._modules),
            mirrors=tuple(
                Mirror(number, step)
                for module in self._modules
                for number, step in module.mirrored().items()
            ),
        )

    def enter(self, begin: Begin, worker: str, peers: Peers) -> None:
        """Get the experts that are missing, and take part; collective.

        Raises
        ------
        PipelineError
            If an expert is neither held, copied nor in memory.
        """
        assignment = begin.assignment
        mine = assignment.experts_of(worker)
        for module in self._modules:
            module.copy(begin.expert_copies, assignment.workers, peers)
            for number in mine:
                if number not in module.numbers or number in module.held():
                    continue
                if number in module.mirrored():
                    module.load(number)
                elif begin.committed < 0:
                    module.create(number)
                else:
                    raise PipelineError(f"{worker}: need a copy of expert {number}")
            module.begin(assignment, peers)

    def share(self, replicas: float) -> None:
        """Weigh the auxiliary losses of the next passes: by the share of replicas in them."""
        for module in self._modules:
            module.aux_loss_scale = replicas

    def idle(self, micro_batches: int) -> None:
        """Take part without tokens while others compute one more replica; collective."""
        random_state = torch.get_rng_state()
        for _ in range(micro_batches):
            outputs = [module.without_tokens() for module in self._modules]
            for output in reversed(outputs):
                torch.autograd.backward(output.sum())
        torch.set_rng_state(random_state)

    def reduce(self, micro_batches: int) -> None:
        """Reduce the gradients over the holders; collective, before the vote."""
        for module in self._modules:
            module.reduce(micro_batches)

    def commit(self) -> None:
        """Apply the reduced gradients."""
        for module in self._modules:
            module.commit()

    def forget(self) -> None:
        """Drop what an attempt at a step has left."""
        for module in self._modules:
            module.forget()

    def mirror(self, step: int) -> None:
        """Send experts to a peer's memory; collective, before a step."""
        for module in self._modules:
            module.mirror(step)

    def leave(self) -> None:
        """Let go of the group."""
        for module in self._modules:
            module.leave()


def _with_experts(layer: nn.Module) -> list[MoELayer]:
    return [module for module in layer.modules() if isinstance(module, MoELayer)]
