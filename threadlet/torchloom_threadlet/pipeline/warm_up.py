"""A rehearsal that makes the first step of a standby as fast as the others' steps."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_core.wire.generations import Begin
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.layers.layer_state import load_bytes, to_bytes
from torchloom_threadlet.pipeline.boundaries import Values
from torchloom_threadlet.pipeline.expert_parts import Experts
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.messages import Messages
from torchloom_threadlet.pipeline.reduction import Reduction
from torchloom_threadlet.pipeline.routes import Route

_NAME = "warm"


def warm_up(program: Program, shapes: tuple[Values, ...]) -> None:
    """Train each layer for a step on zeros, and throw it away.

    What is slow the first time is done: imports, kernels, the optimizer, gloo and the schedule.
    It uses torch's default group, so this worker has none meanwhile.
    """
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        for number, inputs in enumerate(shapes[:-1]):
            _train_one(program, number, inputs, shapes[number + 1])
    finally:
        dist.destroy_process_group()


def _train_one(program: Program, number: int, inputs: Values, outputs: Values) -> None:
    alone = Program(
        layers=[program.layers[number]],
        loss=_loss,
        optimizer=program.optimizer,
        scheduler=program.scheduler,
        device=program.device,
    )
    layer = alone.layer(0)
    if not layer.parameters:
        return
    experts = Experts([layer])
    assignment = Assignment(
        generation=1,
        layers=1,
        routes=((Stage(_NAME, 0, 1),),),
        experts=experts.first_of_each(_NAME),
    )
    experts.enter(Begin(assignment=assignment, committed=-1, store=""), _NAME, Peers(None))
    messages = Messages()
    route = Route(alone, assignment, 0, _NAME, {0: layer}, (inputs, outputs), messages)
    reduction = Reduction(assignment, _NAME, {0: layer}, messages)
    reduction.use(0)
    zeros = tuple(torch.zeros_like(value, device=program.device) for value in inputs)
    targets = torch.zeros(len(zeros[0]), dtype=torch.float32, device="cpu")
    route.run(0, (zeros, targets))
    reduction.reduce()
    experts.reduce(1)
    messages.agree([0])
    reduction.use_total()
    layer.commit()
    experts.commit()
    load_bytes(layer, to_bytes(layer))


def _loss(output: Tensor | Values, _targets: Tensor) -> Tensor:
    values = output if isinstance(output, tuple) else (output,)
    nothing = torch.zeros((), dtype=torch.float32, device="cpu")
    return sum((value.float().mean() for value in values), nothing)
