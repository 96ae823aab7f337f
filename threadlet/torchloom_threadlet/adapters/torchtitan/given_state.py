"""The state that a joining replica group of torchtitan's loads from a rank of another group.

torchtitan's own differs from it in three ways. Its optimizers give the learning rate of their
start, since they keep a copy of their settings. It leaves out the base of the schedule, which the
knob ``lr`` scales. And its weights pass the hooks of a checkpoint, some of which wait for the other
ranks of the group; torchft may have only one of them give its state, which then waits for ever.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_KEY = "set_state_dict_fns"
"""Under which torchft holds the state functions of torchtitan's checkpointer."""

_OTHERS = ("optimizer", "lr_scheduler", "train_state")
_WEIGHTS, _BASES = "torchloom_weights", "torchloom_base_lrs"


def give_own_state(manager: Any, trainer: Any) -> None:
    """Have the Manager give this state, and load it, also from a group that is not attached.

    One that is not attached cannot load it: its step fails, with torchft's error.
    """
    states, schedulers = trainer.checkpointer.states, trainer.lr_schedulers.schedulers
    optimizers, load = trainer.optimizers, manager._load_state_dict_fns[_KEY]

    def present() -> dict[str, Any]:
        optimizers.init_cache_state_dict()
        return dict(optimizers.cache_state_dict)

    def give() -> dict[str, Any]:
        return {
            _WEIGHTS: {name: part.clone() for name, part in _parts(trainer)},
            _BASES: [list(scheduler.base_lrs) for scheduler in schedulers],
            **{name: states[name].state_dict() for name in _OTHERS},
        }

    @torch.no_grad()
    def take(state: dict[str, Any]) -> None:
        state = dict(state)
        weights, bases = state.pop(_WEIGHTS, {}), state.pop(_BASES, ())
        for name, part in _parts(trainer) if weights else ():
            part.copy_(weights[name])
        for scheduler, base in zip(schedulers, bases, strict=False):
            scheduler.base_lrs = list(base)
        load(state)

    optimizers.state_dict = present  # also for checkpoints
    manager._user_state_dicts[_KEY], manager._load_state_dict_fns[_KEY] = give, take


def _parts(trainer: Any) -> Iterator[tuple[str, Tensor]]:
    """Return this rank's parts of all weights and buffers, by their names."""
    for number, model in enumerate(trainer.model_parts):
        for name, whole in (*model.named_parameters(), *model.named_buffers()):
            part = whole.detach()
            yield f"{number}.{name}", part.to_local() if isinstance(part, DTensor) else part
