"""The adapter for torchtitan: knobs of its trainer, its own checkpoints, and its way to stop."""

import math
from functools import partial
from typing import Any

from torchloom_threadlet.adapters.framework import FrameworkAdapter
from torchloom_threadlet.adapters.torchtitan.measurements import Measurements
from torchloom_threadlet.adapters.torchtitan.saved_knobs import (
    base_rates,
    read_saved,
    restore_rates,
    save_with_checkpoints,
)
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.training.gradients import CLIP_NORM_DOC


class TorchtitanAdapter(FrameworkAdapter):
    """Acts on a trainer between two of its steps, on all ranks at the same one.

    Parameters
    ----------
    trainer : Trainer
        Whose checkpoint is loaded.

    Attributes
    ----------
    measurements : Measurements
        Of the trainer's steps.
    """

    framework = "torchtitan"

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.measurements = trainer, Measurements(trainer)

    def manage(self, *parts: Any, **options: Any) -> None:
        """Vote, and register the knobs of the trainer and of its optimizers."""
        trainer = self._trainer
        self._join_votes()
        script = base_rates(trainer)
        resumes = saves(trainer) and trainer.step > 0
        saved = read_saved(trainer, self._ranks or SavingRanks()) if resumes else None
        if self.loom.inert and saved is None:
            return
        self.worker.step = trainer.step
        self.loom.measure(*trainer.model_parts)
        pairs = interleaved(trainer)
        if has_one_mesh(trainer):
            self._register(pairs, clips=False)
        else:  # the norm of shards over several meshes is torchtitan's to compute
            self.loom.optimizer(*pairs)
        register_knobs(self.loom, trainer)
        keeps_rates = saved is not None and restore_rates(trainer, saved)
        for name, rate in scheduled_rates(trainer).items():
            self.worker.actuators.hold(name, rate)
            if saved is not None and not keeps_rates:
                saved["knobs"].pop(name, None)
        if saved is not None:
            self.restore(saved)
        if saves(trainer):
            self.loom.on_checkpoint(lambda: save_now(trainer))
            save_with_checkpoints(trainer, script, self.save)
        self.worker.starting.built()

    def leave(self) -> None:
        """Save, and wait until the checkpoint is written; the trainer then stops by itself."""
        if saves(self._trainer):
            save_now(self._trainer)


def saves(trainer: Any) -> bool:
    """Return whether a trainer writes checkpoints."""
    return bool(trainer.checkpointer.enable and not trainer.checkpointer.load_only)


def save_now(trainer: Any) -> None:
    """Save a full checkpoint, which all ranks have to call."""
    checkpointer = trainer.checkpointer
    interval, checkpointer.interval = checkpointer.interval, 1
    try:  # as at its interval: with ``last_step`` it may save the model alone
        checkpointer.save(trainer.step)
    finally:
        checkpointer.interval = interval
    checkpointer.maybe_wait_for_saving()


def interleaved(trainer: Any) -> list[Any]:
    """Return a trainer's optimizers, each followed by its scheduler."""
    pairs = zip(trainer.optimizers, trainer.lr_schedulers.schedulers, strict=True)
    return [part for pair in pairs for part in pair]


def scheduled_rates(trainer: Any) -> dict[str, float]:
    """Return the rate that each schedule sets from the next step on, by its knob.

    After a restart the optimizer's may be another: a changed rate is in its state, the changed
    base of the schedule in none.
    """
    found = {}
    for number, schedule in enumerate(trainer.lr_schedulers.schedulers, 1):
        share = schedule.lr_lambdas[0](schedule.last_epoch)
        found["lr" if number == 1 else f"opt{number}.lr"] = float(schedule.base_lrs[0] * share)
    return found


def has_one_mesh(trainer: Any) -> bool:
    """Return whether one norm is over all gradients: neither pipeline nor expert parallel."""
    dimensions = trainer.parallel_dims
    return not (dimensions.pp_enabled or dimensions.ep_enabled)


def register_knobs(loom: Any, trainer: Any) -> None:
    """Register what torchtitan reads anew at each step."""
    training, checkpointer = trainer.config.training, trainer.checkpointer

    def clip(norm: float) -> None:
        training.max_norm = norm or math.inf

    def clipping() -> float:
        return 0.0 if math.isinf(training.max_norm) else float(training.max_norm)

    loom.knob("clip_norm", clipping, clip, low=0.0, fence="run", doc=CLIP_NORM_DOC)
    counts = {
        "gradient_accumulation_steps": (
            trainer,
            "gradient_accumulation_steps",
            "batches whose gradients are added up before each optimizer step",
        ),
        "gc_interval": (
            trainer.gc_handler,
            "gc_freq",
            "steps between two runs of Python's garbage collection",
        ),
    }
    if checkpointer.enable:
        counts["checkpoint_interval"] = (
            checkpointer,
            "interval",
            "steps between two of torchtitan's own checkpoints",
        )
    for name, (owner, attribute, doc) in counts.items():
        get, put = partial(getattr, owner, attribute), partial(setattr, owner, attribute)
        loom.knob(name, get, put, kind="int", low=1, fence="run", doc=doc)
