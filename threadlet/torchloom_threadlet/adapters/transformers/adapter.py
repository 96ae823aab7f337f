"""The adapter for the Trainer: its arguments as knobs, its own checkpoints, and its way to stop."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerState

from torchloom_threadlet.adapters.framework import FrameworkAdapter
from torchloom_threadlet.adapters.transformers.epochs import Epochs
from torchloom_threadlet.adapters.transformers.place import Place, saved_state

_KEPT = {"is_local_process_zero", "is_world_process_zero", "max_steps", "num_train_epochs"}
"""What a rewind leaves as it is in a Trainer's state."""


class TransformersAdapter(FrameworkAdapter):
    """Acts on a Trainer between two of its optimizer steps, on all ranks at the same one.

    Attributes
    ----------
    has_rewound : bool
        Whether the epoch in progress has to be left.
    """

    framework = "transformers"

    def __init__(self) -> None:
        self.has_rewound = False
        self._last: str | None = None

    def serve(self, trainer: Any, epochs: Epochs) -> None:
        """Serve a Trainer that is about to train."""
        self._trainer, self._epochs = trainer, epochs

    def manage(self, *parts: Any, **options: Any) -> None:
        """Vote, and register the knobs of the Trainer, its optimizer and its scheduler."""
        trainer, args, epochs = self._trainer, self._trainer.args, self._epochs
        self._join_votes()
        self.loom.measure(trainer.model_wrapped)
        self._register((trainer.optimizer, trainer.lr_scheduler), clips=False)
        if not trainer.is_deepspeed_enabled:  # its engine has its own
            self.register_clipping(
                lambda: args.max_grad_norm, lambda norm: setattr(args, "max_grad_norm", norm)
            )
            self.register_count(
                "gradient_accumulation_steps",
                lambda: epochs.accumulation,
                lambda count: setattr(epochs, "accumulation", count),
                "batches of an optimizer step, from the next step on at which none is left over",
            )
        if epochs.batch_size:
            self.register_count(
                "batch_size",
                lambda: epochs.batch_size,
                lambda size: setattr(epochs, "batch_size", size),
                "samples of a batch of each rank, from the next epoch on",
            )
        self._register_interval("save_steps", args.save_strategy, "two checkpoints")
        self._register_interval("logging_steps", args.logging_strategy, "two logged losses")
        self.loom.on_checkpoint(self.save_now)
        self.worker.starting.built()

    def _register_interval(self, name: str, strategy: Any, what: str) -> None:
        if getattr(strategy, "value", strategy) == "steps":
            trainer = self._trainer
            self.register_count(
                name,
                lambda: int(getattr(trainer.state, name)),
                lambda count: setattr(trainer.state, name, count),
                f"steps between {what}",
            )

    def leave(self) -> None:
        """Save, and have the Trainer stop after this step."""
        self.save_now()
        self._trainer.control.should_training_stop = True

    def save_now(self) -> None:
        """Save a checkpoint of the Trainer's, which all ranks have to do."""
        trainer = self._trainer
        trial = getattr(trainer, "_trial", None)
        path = Path(trainer._get_output_dir(trial)) / f"checkpoint-{trainer.state.global_step}"
        is_new = not path.exists()

        def remove() -> None:
            if is_new and trainer.args.should_save:
                shutil.rmtree(path, ignore_errors=True)

        self.together(lambda: trainer._save_checkpoint(trainer.model_wrapped, trial), remove)
        on_save = trainer.callback_handler.on_save
        trainer.control = on_save(trainer.args, trainer.state, trainer.control)

    def note_saved(self, checkpoint: str) -> None:
        """Take note of a checkpoint to which a rewind leads."""
        trainer = self._trainer
        is_whole = not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled)
        if trainer.args.save_only_model or trainer.args.ignore_data_skip or not is_whole:
            return
        if self._last is None:
            self.loom.on_rewind(self._rewind)
        self._last = checkpoint

    def _rewind(self, skip: int) -> None:
        """Load the newest checkpoint on all ranks; its epoch begins again after this step."""
        trainer, path = self._trainer, self._last
        assert path is not None
        file = Path(path) / "trainer_state.json"
        saved = self.look_first(path, lambda: TrainerState.load_from_json(str(file)))
        own = saved_state(saved.stateful_callbacks)
        trainer._load_from_checkpoint(path)
        trainer._load_optimizer_and_scheduler(path)
        trainer._load_scaler(path)
        for field in dataclasses.fields(saved):
            if field.name not in _KEPT:
                setattr(trainer.state, field.name, getattr(saved, field.name))
        trainer._globalstep_last_logged = trainer.state.global_step
        trainer._tr_loss = torch.zeros_like(trainer._tr_loss)
        trainer.control.should_log = trainer.control.should_save = False
        trainer.control.should_evaluate = False
        self._epochs.go_to(Place(*own["place"])._replace(checkpoint=path), skip)
        self.loom.load_state_dict(own["loom"])
        self.has_rewound = True
