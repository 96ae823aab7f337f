"""Marks the phases of a step where a model and an optimizer run, outside of compiled code."""

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from torchloom_threadlet.device.steps import BACKWARD, FORWARD, OPTIMIZER, OTHER, DeviceSteps
from torchloom_threadlet.training.closures import after_gradients

Undo = Callable[[], object]
"""Removes a hook."""

_WAIT = "ddp"
_MOST_AWAITED = 32
"""Of how many parameters a gradient tells that a backward is under way, in any part of a model."""


def hook_optimizer(optimizer: Any, steps: DeviceSteps) -> list[Undo]:
    """Measure an optimizer's step, without a closure that computes the gradients in it.

    Call it before other hooks are registered, which may clip.
    """

    def begin(_: object, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return after_gradients(args, kwargs, lambda: steps.enter(OPTIMIZER))

    return [
        optimizer.register_step_pre_hook(begin).remove,
        optimizer.register_step_post_hook(_Marks(lambda: steps.enter(OTHER))).remove,
    ]


def hook_model(model: torch.nn.Module, steps: DeviceSteps) -> list[Undo]:
    """Measure a model's forward and backward; with DDP or FSDP also its waits for other ranks."""
    begin = _Marks(lambda: steps.enter(FORWARD))
    end = _Marks(lambda: steps.enter(BACKWARD if torch.is_grad_enabled() else OTHER))
    undo: list[Undo] = [
        model.register_forward_pre_hook(begin).remove,
        model.register_forward_hook(end).remove,
    ]
    if "torch.distributed.fsdp" in sys.modules:  # else no part of the model is sharded
        from torchloom_threadlet.device.fsdp import hook_fsdp

        undo += hook_fsdp(model, steps)
    ddp = getattr(model, "_orig_mod", model)
    if type(ddp) is not DistributedDataParallel:  # torchft's has its Manager's waits
        return undo
    return undo + _hook_ddp(ddp, steps)


def _hook_ddp(ddp: DistributedDataParallel, steps: DeviceSteps) -> list[Undo]:
    """Measure the wait at the end of a backward, where DDP waits for its collectives.

    Callbacks of a backward run once all gradients of this rank are computed, in the order in which
    they were queued. The one here is queued before DDP's, which is at the last gradient.
    """
    # The parameters, which keep the hooks, may outlive it and its buffers.
    reference, engine, is_queued = weakref.ref(ddp), Variable._execution_engine, False

    def forward() -> None:
        nonlocal is_queued
        is_queued = False  # the last backward may have failed

    def gradient() -> None:
        nonlocal is_queued
        ddp = reference()
        if not is_queued and ddp is not None and ddp.require_backward_grad_sync:
            is_queued = True
            engine.queue_callback(wait)

    def wait() -> None:
        nonlocal is_queued
        is_queued = False
        steps.begin(_WAIT)
        engine.queue_callback(lambda: steps.end(_WAIT))  # runs after DDP's

    undo: list[Undo] = [ddp.register_forward_pre_hook(_Marks(forward)).remove]
    trained = [each for each in ddp.parameters() if each.requires_grad]
    for each in trained[:: 1 + len(trained) // _MOST_AWAITED]:
        hook = _Marks(gradient)
        undo.append(each.register_post_accumulate_grad_hook(hook).remove)  # type: ignore[no-untyped-call]
    return undo


class _Marks:
    """A hook; in a copy of the model, or a file, it does nothing."""

    def __init__(self, mark: Callable[[], object] | None = None) -> None:
        self._mark = mark

    def __call__(self, *_: object) -> None:
        if self._mark is not None and not torch.compiler.is_compiling():  # there: no graph break
            self._mark()

    def __reduce__(self) -> tuple[type["_Marks"], tuple[()]]:
        return _Marks, ()
