"""Marks where the stream that computes waits for FSDP's collectives.

torch has no hook there, so these are methods of its own. They also copy what was gathered and
what is reduced, which counts as waiting.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from torchloom_threadlet.cleaning import error_line, warn_once
from torchloom_threadlet.device.steps import DeviceSteps

_WAITS_OF_A_GROUP = ("wait_for_unshard", "post_backward")
_WAIT_OF_A_STATE = "_root_post_backward_final_callback"
_WHAT = "fsdp"


def hook_fsdp(model: torch.nn.Module, steps: DeviceSteps) -> list[Callable[[], object]]:
    """Measure the waits of all parts of ``model`` that ``fully_shard`` has sharded.

    Returns what undoes it. If this torch has other methods, one warning says so, and only whole
    steps are measured.
    """
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    try:
        waits = [wait for part in parts for wait in _waits(part._get_fsdp_state())]
    except AttributeError as error:
        what = f"its waits are not measured with torch {torch.__version__}"
        warn_once("FSDP", f"{what} ({error_line(error)})")
        return []
    for owner, name, method in waits:
        setattr(owner, name, _waiting(method, steps))
    return [partial(delattr, owner, name) for owner, name, _ in waits]


def _waits(state: Any) -> list[tuple[Any, str, Callable[..., Any]]]:
    groups = [(group, name) for group in state._fsdp_param_groups for name in _WAITS_OF_A_GROUP]
    return [(one, name, getattr(one, name)) for one, name in [*groups, (state, _WAIT_OF_A_STATE)]]


def _waiting(method: Callable[..., Any], steps: DeviceSteps) -> Callable[..., Any]:
    @wraps(method)
    def marked(*args: Any) -> Any:
        steps.begin(_WHAT)
        try:
            return method(*args)
        finally:
            steps.end(_WHAT)

    return marked
