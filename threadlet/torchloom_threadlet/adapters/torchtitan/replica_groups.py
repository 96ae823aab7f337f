"""The adapter for torchtitan's torchft trainer: several groups of ranks, and torchft between them.

Three things of torchtitan's differ while it is attached. The quorum is awaited before the forward
pass, else the ranks of a group could not vote. The state that a joining group loads has the present
learning rate, where torchtitan gives the rate of its start. And it has the base of the schedule,
which torchtitan leaves out, and which the knob ``lr`` scales.
"""

import logging
from typing import Any

from torchft.local_sgd import DiLoCo, LocalSGD

from torchloom_threadlet.adapters.torchft.adapter import TorchftAdapter
from torchloom_threadlet.adapters.torchtitan.adapter import (
    has_one_mesh,
    interleaved,
    register_knobs,
    save_now,
    saves,
)
from torchloom_threadlet.adapters.torchtitan.measurements import Measurements
from torchloom_threadlet.training.gradients import ManagedOptimizers

_KEY = "set_state_dict_fns"
"""Under which torchft holds the state functions of torchtitan's checkpointer."""

_SCHEDULE, _BASE = "lr_scheduler", "base_lrs"

_logger = logging.getLogger(__name__)


class ReplicaGroupsAdapter(TorchftAdapter):
    """Acts on a trainer between two of its steps, on all ranks of all groups at the same one.

    Parameters
    ----------
    trainer : FaultTolerantTrainer
        Whose checkpoint is loaded.

    Attributes
    ----------
    measurements : Measurements
        Of the trainer's steps.
    """

    framework = "torchtitan"

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.measurements = trainer, Measurements(trainer)

    def bind(self, loom: Any, worker: Any) -> None:
        """Save on all ranks at one step, or on none."""
        super().bind(loom, worker)
        worker.saves_together = True

    def manage(self, *parts: Any, **options: Any) -> None:
        """Vote with each quorum, and register the knobs of the trainer and its optimizers."""
        trainer, loom = self._trainer, self.loom
        if loom.inert:
            return
        if not trainer.checkpointer.enable:  # a joining group would have only the others' knobs
            _logger.warning(
                "%s: no commands: need --checkpoint.enable, or torchtitan gives a joining group "
                "no weights",
                loom.worker,
            )
            return
        manager = trainer.ft_manager.manager
        manager._use_async_quorum = False
        give_present_rates(manager, trainer)
        super().manage(manager)
        can_vote = self.worker.changes.can_vote
        pairs = interleaved(trainer)
        if has_one_mesh(trainer):
            self._optimizers = ManagedOptimizers(
                loom,
                pairs,
                can_vote=can_vote,
                step=manager.current_step,
                measure_update=False,
                clips=False,
            )
        else:  # the norm of shards over several meshes is torchtitan's to compute
            loom.optimizer(*pairs)
        register_knobs(loom, trainer)
        for rounds in semi_synchronous(trainer):
            loom.local_sgd(rounds)
        if saves(trainer):
            loom.on_checkpoint(lambda: save_now(trainer))

    def boundary(self, step: int | None) -> Any:
        """Return torchft's step, which all groups count alike, and what it waited for."""
        return super().boundary(None)

    def leave(self) -> None:
        """Save, and leave the quorum; the trainer of this group then stops by itself."""
        if saves(self._trainer):
            save_now(self._trainer)
        super().leave()


def semi_synchronous(trainer: Any) -> list[Any]:
    """Return the trainer's DiLoCo or LocalSGD, which torchtitan keeps in its hooks alone."""
    hooks = trainer.optimizers._optimizer_step_pre_hooks.values()
    owners = [getattr(hook, "__self__", None) for hook in hooks]
    return [owner for owner in owners if isinstance(owner, DiLoCo | LocalSGD)]


def give_present_rates(manager: Any, trainer: Any) -> None:
    """Give a joining group, and a checkpoint, the optimizers' present rates and their base."""
    optimizers, schedulers = trainer.optimizers, trainer.lr_schedulers.schedulers
    give, load = manager._user_state_dicts[_KEY], manager._load_state_dict_fns[_KEY]

    def present() -> dict[str, Any]:
        optimizers.init_cache_state_dict()
        return dict(optimizers.cache_state_dict)

    def given() -> dict[str, Any]:
        state: dict[str, Any] = give()
        bases = [list(scheduler.base_lrs) for scheduler in schedulers]
        return state | {_SCHEDULE: {**state[_SCHEDULE], _BASE: bases}}

    def loaded(state: dict[str, Any]) -> None:
        # A group that is not attached gives no base.
        for scheduler, base in zip(schedulers, state[_SCHEDULE].get(_BASE, ()), strict=False):
            scheduler.base_lrs = list(base)
        load(state)

    optimizers.state_dict = present
    manager._user_state_dicts[_KEY], manager._load_state_dict_fns[_KEY] = given, loaded
