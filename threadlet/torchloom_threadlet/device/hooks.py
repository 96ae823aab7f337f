"""Marks the phases of a step where a model and an optimizer run, outside of compiled code."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torchloom_threadlet.device.steps import BACKWARD, FORWARD, OPTIMIZER, OTHER, DeviceSteps

_LAST_GRADIENTS = 8
"""A gradient is awaited from the first parameters of a model: they get theirs last."""


def hook_optimizer(optimizer: Any, steps: DeviceSteps) -> None:
    """Measure an optimizer's step; in front of other hooks, which may clip."""
    optimizer.register_step_pre_hook(_marking(lambda: steps.enter(OPTIMIZER)))
    optimizer.register_step_post_hook(_marking(lambda: steps.enter(OTHER)))


def hook_model(model: torch.nn.Module, steps: DeviceSteps) -> None:
    """Measure a model's forward and backward; with DDP or FSDP also its waits for other ranks.

    Torch's own DDP waits for its collectives where its backward ends, so the time from the last
    gradient of this rank to the next phase is a wait.
    """
    model.register_forward_pre_hook(_marking(lambda: steps.enter(FORWARD)))
    model.register_forward_hook(
        _marking(lambda: steps.enter(BACKWARD if torch.is_grad_enabled() else OTHER))
    )
    if "torch.distributed.fsdp" in sys.modules:  # else no part of the model is sharded
        from torchloom_threadlet.device.fsdp import hook_fsdp

        hook_fsdp(model, steps)
    ddp = getattr(model, "_orig_mod", model)
    if type(ddp) is not DistributedDataParallel:  # torchft's has its Manager's waits
        return

    def gradient() -> None:
        if ddp.require_backward_grad_sync:
            steps.await_gradients()

    trained = [each for each in ddp.parameters() if each.requires_grad]
    for parameter in trained[:_LAST_GRADIENTS]:
        hook = _marking(gradient)
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _marking(mark: Callable[[], object]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        if not torch.compiler.is_compiling():  # a constant there: no graph break
            mark()

    return hook
