"""The adapter for torchtitan's torchft trainer: several groups of ranks, and torchft between them.

The quorum is awaited before the forward pass, else the ranks of a group could not vote; and a
joining group is given another state: :mod:`torchloom_threadlet.adapters.torchtitan.given_state`.
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
from torchloom_threadlet.adapters.torchtitan.given_state import give_own_state
from torchloom_threadlet.adapters.torchtitan.measurements import Measurements
from torchloom_threadlet.training.gradients import ManagedOptimizers

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
        give_own_state(manager, trainer)
        super().manage(manager)
        loom.measure(*trainer.model_parts)
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

    def note_norm(self, norm: Any) -> None:
        """Report the norm that torchtitan has computed as it clips: spares a second one."""
        if self._optimizers is not None:
            self._optimizers.know_norm(norm)

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
