"""The parts of replicas that one worker computes, by ``torch.distributed.pipelining``."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.assignment import Assignment
from torchloom_threadlet.experts.moe_layer import MoELayer
from torchloom_threadlet.layers.layer import Layer, mixed
from torchloom_threadlet.pipeline.boundaries import Values, as_values
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.messages import Messages
from torchloom_threadlet.pipeline.user_code import of_the_user


class Route:
    """The own stage of one replica, in one generation.

    Parameters
    ----------
    held : mapping of int to Layer
        The worker's layers.
    shapes : tuple of tuple of Tensor, (layers + 1,)
        From :func:`boundaries`.
    """

    def __init__(
        self,
        program: Program,
        assignment: Assignment,
        replica: int,
        worker: str,
        held: Mapping[int, Layer],
        shapes: tuple[Values, ...],
        messages: Messages,
    ) -> None:
        route = assignment.routes[replica]
        index = [stage.worker for stage in route].index(worker)
        mine = route[index]
        self.replica = replica
        self.layers = [held[number] for number in mine.layers]
        self.is_first, self.is_last = index == 0, index == len(route) - 1
        self._program = program
        self._modules = _Layers(program, replica, self.layers)
        ranks = {number: assignment.workers.index(s.worker) for number, s in enumerate(route)}
        self._stage = _Stage(
            self._modules,
            index,
            ranks,
            len(assignment.workers),
            program.device,
            on_device(shapes[mine.first], program.device),
            on_device(shapes[mine.end], program.device),
            messages,
        )
        if program.micro_batches >= len(route):
            kind: type[Schedule1F1B] | type[ScheduleGPipe] = Schedule1F1B
        else:
            kind = ScheduleGPipe
        self._schedule = kind(self._stage, program.micro_batches, loss_fn=self._loss)

    def run(self, step: int, batch: tuple[Any, Any]) -> float | None:
        """Compute forward and backward of a step; gradients are added to ``parameter.grad``.

        Parameters
        ----------
        batch : tuple
            Inputs, used in the first stage, and targets, used in the last.

        Returns
        -------
        float or None
            Mean loss of the replica, from the last stage.
        """
        self._modules.begin(step)
        self._stage.backward_s = 0.0
        losses: list[Tensor] = []
        inputs, targets = batch
        args = as_values(inputs, f"batch of replica {self.replica}") if self.is_first else ()
        kwargs = {"target": targets, "losses": losses} if self.is_last else {}
        random_state = torch.get_rng_state()
        try:
            self._schedule.step(*args, return_outputs=False, **kwargs)
        finally:
            torch.set_rng_state(random_state)
        self._modules.check_buffers()
        if not self.is_last:
            return None
        return sum(float(loss.detach()) for loss in losses) / len(losses)

    def _loss(self, output: Any, targets: Any) -> Tensor:
        with of_the_user():
            return self._program.loss(output, targets)

    def seconds(self) -> dict[int, float]:
        """Return the seconds of forward and backward of each layer and micro-batch.

        Backward is shared out like forward.
        """
        forward_s = self._modules.forward_s
        total = sum(forward_s.values())
        share = 1 + self._stage.backward_s / total if total else 1.0
        count = self._program.micro_batches
        return {number: seconds * share / count for number, seconds in forward_s.items()}


def on_device(values: Values, device: torch.device) -> Values:
    """Return empty tensors of these shapes."""
    return tuple(torch.empty_like(v, device=device).requires_grad_(v.requires_grad) for v in values)


class _Layers(nn.Module):
    """Consecutive layers of one replica; each micro-batch and layer has its own random numbers."""

    def __init__(self, program: Program, replica: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._modules_ = nn.ModuleList(layer.module for layer in layers)
        self._numbers = [layer.number for layer in layers]
        self._program, self._replica, self._device = program, replica, program.device
        self._step = self._micro_batch = 0
        self._versions: list[int] = []
        self._experts = [one for one in self._modules_.modules() if isinstance(one, MoELayer)]
        self.forward_s: dict[int, float] = {}

    def begin(self, step: int) -> None:
        self._step, self._micro_batch = step, 0
        self.forward_s = dict.fromkeys(self._numbers, 0.0)
        self._versions = [buffer._version for buffer in self.buffers()]

    def forward(self, *values: Tensor) -> Tensor | Values:
        seed = self._program.seed
        for number, module in zip(self._numbers, self._modules_, strict=True):
            began_s = self.busy_s()
            _seed(mixed(seed, self._step, self._replica, self._micro_batch, number), self._device)
            with of_the_user():
                output = as_values(module(*values), f"pipeline: layer {number}")
            values = tuple(_contiguous(value) for value in output)
            self.forward_s[number] += self.busy_s() - began_s
        self._micro_batch += 1
        return values if len(values) > 1 else values[0]

    def busy_s(self) -> float:
        """Return a time in seconds that stands still while tokens of other workers are awaited."""
        waited_s = self._experts[0].peers.waited_s if self._experts else 0.0  # all have the same
        return time.perf_counter() - waited_s

    def check_buffers(self) -> None:
        """Refuse layers that keep a state between steps: a step is computed again after a loss."""
        if [buffer._version for buffer in self.buffers()] != self._versions:
            names = [name for name, _ in self.named_buffers()]
            raise ConfigError(
                f"pipeline: layers {self._numbers}: need modules whose forward changes no buffer, "
                f"have {', '.join(names)}: use LayerNorm or GroupNorm"
            )


class _Contiguous(torch.autograd.Function):
    """Passes values and gradients on with the memory layout that a received tensor has.

    Otherwise the results of a layer might differ in the last bit with the place of its neighbour.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """Return the value itself, or a contiguous copy."""
        return value.contiguous().view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Return the gradient, contiguous."""
        return grads[0].contiguous()


def _contiguous(value: Tensor) -> Tensor:
    return _Contiguous.apply(value) if value.is_floating_point() else value.contiguous()  # type: ignore[no-untyped-call]


def _seed(seed: int, device: torch.device) -> None:
    """Set the random states; torch's own way keeps a trace of each call on a CPU."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class _Stage(PipelineStage):
    """A stage in the group of the whole generation.

    It agrees on nothing before its first step: all shapes are given.
    """

    def __init__(
        self,
        module: _Layers,
        index: int,
        ranks: dict[int, int],
        workers: int,
        device: torch.device,
        inputs: Values,
        outputs: Values,
        messages: Messages,
    ) -> None:
        # torch wants at least as many stages as the group has ranks; a route may have fewer.
        super().__init__(
            module, index, max(len(ranks), workers), device, input_args=inputs, output_args=outputs
        )
        self.num_stages = len(ranks)
        self.stage_index_to_group_rank = ranks
        self.backward_s = 0.0
        self._busy_s, self._messages = module.busy_s, messages

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._received(super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._received(super().get_bwd_recv_ops(bwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sent(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sent(super().get_bwd_send_ops(bwd_chunk_id))

    def _received(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Receive at once, and leave nothing for the schedule to wait for."""
        for op in ops:
            self._messages.receive(op.tensor, op.peer)
        return []

    def _sent(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Send at once, and leave nothing for the schedule to wait for."""
        for op in ops:
            self._messages.send(op.tensor, op.peer)
        return []

    def _warmup_forward_vote(
        self, has_backward: bool, received_acc: Tensor | None = None
    ) -> Tensor:
        return torch.ones(1, dtype=torch.int32, device="cpu")

    def _warmup_backward_result(self, received_result: Tensor | None = None) -> Tensor:
        return torch.ones(1, dtype=torch.int32, device="cpu")

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        began_s = self._busy_s()
        with of_the_user():
            super().backward_one_chunk(*args, **kwargs)
        self.backward_s += self._busy_s() - began_s
