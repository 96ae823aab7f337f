"""The adapter for Lightning: knobs of its Trainer, its own checkpoints, and its way to stop."""

import logging
import os
from collections.abc import Callable
from typing import Any

from torch.nn.utils import clip_grad_norm_

from torchloom_threadlet.adapters.framework import FrameworkAdapter
from torchloom_threadlet.adapters.lightning.batch_size import BatchSize
from torchloom_threadlet.adapters.lightning.resume import resume_loaders
from torchloom_threadlet.adapters.random_states import restore_random_state
from torchloom_threadlet.adapters.replaced import replaced

_logger = logging.getLogger(__name__)


class Rewound(Exception):
    """Leaves Lightning's training loop after a rewind; :class:`LightningAdapter` begins it anew."""


class LightningAdapter(FrameworkAdapter):
    """Acts on a Trainer between two of its optimizer steps, on all ranks at the same one.

    Parameters
    ----------
    folder : str or PathLike, optional
        Where checkpoints on request go; beside those of the Trainer's ModelCheckpoint by default.
    keep : int
        The newest checkpoints on request that stay.

    Attributes
    ----------
    batch_size : BatchSize
        That of the training data.
    restored : mapping
        The callback's part of a checkpoint that was loaded, until training starts.
    has_rewound : bool
        Whether the loop in progress has to be left.
    unwatch : callable
        Ends :meth:`watch`.
    """

    framework = "lightning"

    unwatch: Callable[[], None]
    _save_checkpoint: Callable[..., None]

    def __init__(self, folder: str | os.PathLike[str] | None, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self.restored: dict[str, Any] = {}
        self.has_rewound = False
        self._skip, self._loops = 0, dict[str, Any]()
        self._requested: list[str] = []
        self._last = ""
        self._weights_only: bool | None = None
        self._offers_rewind = False

    def manage(self, *parts: Any, **options: Any) -> None:
        """Vote, and register the knobs of the Trainer and of its optimizers."""
        trainer = self._trainer
        self._join_votes()
        clips = not trainer.lightning_module.automatic_optimization
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self.loom.measure(trainer.model)
        self._register((*trainer.optimizers, *schedulers), clips=clips)
        if not clips and trainer.gradient_clip_algorithm in (None, "norm"):
            self.register_clipping(lambda: trainer.gradient_clip_val, self._clip)
        if not any(type(one).__name__ == _ACCUMULATION for one in trainer.callbacks):
            self.register_count(
                "accumulate_grad_batches",
                lambda: trainer.accumulate_grad_batches,
                self._accumulate,
                "batches whose gradients are added up before each optimizer step",
            )
        if self.batch_size.is_known():
            self.register_count(
                "batch_size",
                self.batch_size.get,
                self.batch_size.set,
                "samples of a batch of each rank, from the next epoch on",
            )
        self.loom.on_checkpoint(self.save_now)
        self.worker.starting.built()

    def enter(self, phase: str) -> None:
        """Begin a phase of the step on the GPU, if there is one."""
        if (steps := self.loom._device.steps) is not None:
            steps.enter(phase)

    def leave(self) -> None:
        """Save, and have Lightning stop after this batch."""
        self.save_now()
        self._trainer.should_stop = True

    def save_now(self) -> None:
        """Save by ``trainer.save_checkpoint``, which all ranks have to call."""
        trainer = self._trainer
        path = os.path.join(self._place(), f"last-step={trainer.global_step}.ckpt")  # or a URL
        self.together(lambda: self._save(path), lambda: trainer.strategy.remove_checkpoint(path))
        self.note_saved(path)
        if path not in self._requested:
            self._requested.append(path)
        while len(self._requested) > self._keep:
            trainer.strategy.remove_checkpoint(self._requested.pop(0))

    def _save(self, path: str) -> None:
        """Save, and raise only after the barrier at which the other ranks wait.

        No rank writes if a hook of the script's, which adds to the checkpoint, fails on one.
        """
        strategy, connector = self._trainer.strategy, self._trainer._checkpoint_connector
        collect, write, failed = connector.dump_checkpoint, strategy.save_checkpoint, []

        def dump_checkpoint(*arguments: Any, **named: Any) -> Any:
            try:
                return collect(*arguments, **named)
            except Exception as error:  # noqa: BLE001 - a hook's
                failed.append(error)
                return {}

        def save_checkpoint(*arguments: Any, **named: Any) -> None:
            if not (not failed if self._ranks is None else self._ranks.all(not failed)):
                return
            try:
                write(*arguments, **named)
            except Exception as error:  # noqa: BLE001 - the disk's, or a plugin's
                failed.append(error)

        undo = (
            replaced(connector, "dump_checkpoint", dump_checkpoint),
            replaced(strategy, "save_checkpoint", save_checkpoint),
        )
        try:
            self._save_checkpoint(path)
        finally:
            for each in undo:
                each()
        if failed:
            raise failed[0]

    def watch(self, trainer: Any) -> None:
        """Serve a Trainer that is about to fit.

        From now on each full checkpoint is known, and a rewind begins the training loop anew.
        """
        self._trainer, loop = trainer, trainer.fit_loop
        self.batch_size = BatchSize(trainer)
        self._save_checkpoint, run = trainer.save_checkpoint, loop.run
        load_states = loop._load_combined_loader_states

        def save_checkpoint(
            filepath: Any, weights_only: Any = None, *rest: Any, **more: Any
        ) -> None:
            self._save_checkpoint(filepath, weights_only, *rest, **more)
            if not weights_only:
                self.note_saved(str(filepath))

        def clip_grad_by_norm(optimizer: Any, clip_val: float) -> None:
            self.note_norm(clip_grad_norm_(precision.main_params(optimizer), clip_val))

        connector = trainer._checkpoint_connector
        restore = connector._restore_modules_and_callbacks

        def restored(path: Any = None, weights_only: bool | None = None) -> None:
            self._weights_only = weights_only  # as the script has passed to ``fit``
            restore(path, weights_only)

        precision = trainer.precision_plugin
        clips = type(precision).clip_grad_by_norm.__qualname__ == "Precision.clip_grad_by_norm"
        undo = (
            *([replaced(precision, "clip_grad_by_norm", clip_grad_by_norm)] if clips else []),
            replaced(connector, "_restore_modules_and_callbacks", restored),
            replaced(trainer, "save_checkpoint", save_checkpoint),
            replaced(loop, "run", lambda: self._run(run)),
            replaced(
                loop, "_load_combined_loader_states", lambda: self._resume_loaders(load_states)
            ),
        )

        def end() -> None:
            for each in undo:
                each()

        self.unwatch = end

    def note_saved(self, path: str) -> None:
        """Take note of a checkpoint to which a rewind leads."""
        self._last = path
        if not self._offers_rewind:
            self._offers_rewind = True
            self.loom.on_rewind(self._rewind)

    def start(self) -> None:
        """Continue from what was loaded, as training starts: knobs, and random states if left."""
        if restored := self.restored:
            self.loom.load_state_dict(restored["loom"])
            self.batch_size.end_restored(restored["batch_size"])
            self._restore_random_state()
            self.restored = {}
        self._skip_batches()

    def _restore_random_state(self) -> None:
        texts = self.restored.pop("random", None)
        if texts and not restore_random_state(texts, self._trainer.global_rank):
            _logger.warning("random states are not restored: there were fewer ranks")

    def _skip_batches(self) -> None:
        """Pass over the batches that a rewind skips."""
        fetcher, count = self._trainer.fit_loop._data_fetcher, self._skip
        self._skip = 0
        for _ in range(count):
            if next(fetcher, None) is None:
                return

    def _run(self, run: Callable[[], None]) -> None:
        while True:
            try:
                return run()
            except Rewound:  # leaving the loops has cleared where they were to begin
                self.has_rewound = False
                self._trainer.fit_loop.load_state_dict(self._loops)

    def _resume_loaders(self, load_states: Callable[[], None]) -> None:
        """Load the loaders' states, in the epoch and with the batch size of the checkpoint."""
        if not self.restored:
            return load_states()
        self.batch_size.begin_restored(self.restored["batch_size"])
        if resume_loaders(self._trainer.fit_loop, load_states):
            self._restore_random_state()  # the iterator of the epoch that begins draws from it
        return None

    def _rewind(self, skip: int) -> None:
        """Load the newest checkpoint on all ranks; the loop begins again after this batch."""
        trainer = self._trainer
        path = trainer.strategy.broadcast(self._last)
        connector = trainer._checkpoint_connector
        self.look_first(path, lambda: connector.resume_start(path, self._weights_only))
        trainer.fit_loop._data_fetcher.teardown()
        self._loops = connector._loaded_checkpoint["loops"]["fit_loop"]
        connector.restore_datamodule()
        connector.restore_model()
        connector.restore_callbacks()
        connector.restore_training_state()
        connector.resume_end()
        trainer.fit_loop._combined_loader = None
        self._skip, self.has_rewound = skip, True

    def _accumulate(self, count: int) -> None:
        """Change it, and forget gradients: Lightning counts from the epoch's begin when to."""
        self._trainer.accumulate_grad_batches = count
        for optimizer in self._trainer.optimizers:
            optimizer.zero_grad()

    def _clip(self, norm: float) -> None:
        self._trainer.gradient_clip_val = norm or None

    def _place(self) -> str:
        saver, root = self._trainer.checkpoint_callback, self._trainer.default_root_dir
        given = self._folder or getattr(saver, "dirpath", None)
        return str(given) if given else os.path.join(root, "checkpoints")


_ACCUMULATION = "GradientAccumulationScheduler"
