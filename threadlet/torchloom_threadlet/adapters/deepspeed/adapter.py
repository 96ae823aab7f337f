"""The adapter for DeepSpeed: knobs, steps and checkpoints of an engine."""

import inspect
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchloom_threadlet.adapters.deepspeed.rank_state import RankState, rank_of
from torchloom_threadlet.adapters.framework import FrameworkAdapter
from torchloom_threadlet.adapters.replaced import replaced

_logger = logging.getLogger(__name__)


class DeepSpeedAdapter(FrameworkAdapter):
    """Acts on an engine between two optimizer steps, on all ranks at the same one."""

    framework = "deepspeed"

    def __init__(self) -> None:
        self._engine: Any = None
        self._folder: Path | None = None
        self._keep = 1
        self._requested: list[Path] = []
        self._losses: list[torch.Tensor] = []
        self._since_s, self._samples = 0.0, 0
        self._undo: list[Callable[[], None]] = []

    def serve(self, engine: Any, folder: Path | None, loader: Any, keep: int) -> None:
        """Report each step of an engine, whose checkpoints hold this rank's state from now on."""
        self._folder, self._keep = folder, keep
        if engine is self._engine:  # a cell of a notebook that runs again
            return
        self._engine = engine
        self._state = RankState(engine, loader, self.loom)
        step, backward = engine.step, engine.backward
        save, load = engine.save_checkpoint, engine.load_checkpoint
        self._since_s, self._samples = time.perf_counter(), engine.global_samples

        def stepped(*arguments: Any, **named: Any) -> bool:
            before = engine.global_steps
            step(*arguments, **named)
            if engine.global_steps == before:  # more micro-batches are added up first
                return True
            going: bool = self.loom.step(engine.global_steps, **self._metrics())
            return going

        def passed_back(loss: Any, *rest: Any, **named: Any) -> Any:
            scaled = backward(loss, *rest, **named)
            if not self.loom.inert:
                self._losses.append(loss.detach())
            return scaled

        def saved(save_dir: Any, tag: Any = None, *rest: Any, **named: Any) -> Any:
            tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
            self._state.write(Path(save_dir) / tag)  # before DeepSpeed names it the newest
            return save(save_dir, tag, *rest, **named)

        def loaded(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(load).bind(*arguments, **named)
            given.apply_defaults()
            is_whole = given.arguments["load_optimizer_states"]
            is_whole = is_whole and not given.arguments["load_module_only"]
            path, client_state = load(*arguments, **named)
            if path is not None and is_whole:
                self._state.read(Path(path).parent)
            return path, client_state

        for undo in self._undo:  # of an engine that was served before
            undo()
        self._undo = [
            replaced(engine, "step", stepped),
            replaced(engine, "backward", passed_back),
            replaced(engine, "save_checkpoint", saved),
            replaced(engine, "load_checkpoint", loaded),
        ]
        if folder is not None and loader is None and not self.loom.inert and not rank_of():
            _logger.warning(
                "deepspeed: the position in the data is not saved: after a restart the first "
                "batches come again; pass attach(..., loader=) a StatefulDataLoader of torchdata"
            )

    def manage(self, *parts: Any, **options: Any) -> None:
        """Vote, and register the knobs of the engine and of its optimizer."""
        engine = self._engine
        self._join_votes()
        self.loom.measure(engine)
        parts = (engine.optimizer,)
        if hasattr(engine.lr_scheduler, "step"):
            parts = (*parts, engine.lr_scheduler)
        if engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled():
            self.loom.optimizer(*parts)  # gradients are not in ``param.grad``
        else:
            self._register(parts, clips=False)
        if getattr(engine.optimizer, "compute_grad_norm", True):
            self.register_clipping(engine.gradient_clipping, self._clip)
        if engine.managed_gradient_accumulation():
            self.register_count(
                "gradient_accumulation_steps",
                engine.gradient_accumulation_steps,
                self._accumulate,
                "micro-batches whose gradients are added up before each optimizer step",
            )
        if self._folder is not None:
            self.loom.on_checkpoint(self.save_now)
        self.worker.starting.built()

    def leave(self) -> None:
        """Save, if there is a folder to save in; the script's loop ends."""
        if self._folder is not None:
            self.save_now()

    def save_now(self) -> None:
        """Save by ``engine.save_checkpoint``, which all ranks have to call."""
        folder, tag = self._folder, f"step-{self._engine.global_steps}"
        assert folder is not None
        path = folder / tag

        def remove() -> None:
            if not rank_of():
                shutil.rmtree(path, ignore_errors=True)

        def publish() -> None:
            if not rank_of():
                name = folder / "latest.new"
                name.write_text(tag, encoding="utf-8")
                name.replace(folder / "latest")

        self.together(lambda: self._save(folder, tag), remove)
        self.together(publish, remove)
        if path not in self._requested:
            self._requested.append(path)
        while len(self._requested) > self._keep:
            old = self._requested.pop(0)
            if not rank_of():
                shutil.rmtree(old, ignore_errors=True)

    def _save(self, folder: Path, tag: str) -> None:
        """Save, and raise only after the barriers at which the other ranks wait."""
        files, failed = self._engine.checkpoint_engine, list[Exception]()
        write, write_state = files.save, self._state.write

        def guarded(write: Callable[..., Any]) -> Callable[..., Any]:
            def written(*arguments: Any, **named: Any) -> Any:
                try:
                    return write(*arguments, **named)
                except Exception as error:  # noqa: BLE001 - the disk's
                    failed.append(error)

            return written

        undo = replaced(files, "save", guarded(write))
        undo_state = replaced(self._state, "write", guarded(write_state))
        try:
            self._engine.save_checkpoint(str(folder), tag, save_latest=False)
        finally:
            undo()
            undo_state()
        if failed:
            raise failed[0]

    def load_newest(self) -> int:
        """Load the newest checkpoint; return its number of steps, 0 without one."""
        folder = self._folder
        if folder is None or not (folder / "latest").exists():
            return 0
        self._engine.load_checkpoint(str(folder))
        return int(self._engine.global_steps)

    def _accumulate(self, count: int) -> None:
        engine = self._engine
        micro = engine.train_micro_batch_size_per_gpu()
        engine.set_train_batch_size(count * micro * engine.dp_world_size)
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):
            engine.optimizer.gradient_accumulation_steps = count
        engine.micro_steps = 0  # the next step takes so many micro-batches, too

    def _clip(self, norm: float) -> None:
        engine = self._engine
        engine._config.gradient_clipping = norm  # without ZeRO, the engine clips
        if hasattr(engine.optimizer, "clip_grad"):
            engine.optimizer.clip_grad = norm

    def _metrics(self) -> dict[str, Any]:
        """Return the step's loss, throughput, and the norm of its gradients before clipping."""
        if self.loom.inert:
            return {}
        engine, now_s = self._engine, time.perf_counter()
        samples = engine.global_samples - self._samples
        found = {"samples_per_s": samples / max(now_s - self._since_s, 1e-9)}
        self._since_s, self._samples = now_s, engine.global_samples
        if self._losses:
            found["loss"] = torch.stack(self._losses).float().mean()
            self._losses = []
        # Without ZeRO the engine knows no norm and returns 0; ours is measured there.
        if self._optimizers is None and (norm := engine.get_global_grad_norm()) is not None:
            found["grad_norm"] = norm
        return found
