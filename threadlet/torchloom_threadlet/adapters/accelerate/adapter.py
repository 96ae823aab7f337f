"""The adapter for accelerate: clipping, accumulation and checkpoints of an Accelerator."""

import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.nn import Module

from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.adapters.accelerate.clipping import Clipping
from torchloom_threadlet.adapters.framework import FrameworkAdapter
from torchloom_threadlet.adapters.random_states import draw_nothing_on_resume
from torchloom_threadlet.adapters.replaced import replaced
from torchloom_threadlet.cleaning import error_line

_FILE = "torchloom.json"
_NAME = re.compile(r"step-(\d+)")

_logger = logging.getLogger(__name__)


class AccelerateAdapter(FrameworkAdapter):
    """Acts on an Accelerator between two optimizer steps, on all ranks at the same one."""

    framework = "accelerate"

    def __init__(self) -> None:
        self._accelerator: Any = None
        self._folder: Path | None = None
        self._keep = 1
        self._clipping: Clipping | None = None
        self._restored: Mapping[str, Any] = {}
        self._is_managed = False

    def serve(self, accelerator: Any, folder: Path | None, keep: int) -> None:
        """Serve an Accelerator, whose checkpoints hold the loom's state from now on.

        What it prepares from now on is measured.
        """
        self._folder, self._keep = folder, keep
        if accelerator is self._accelerator:  # a cell of a notebook that runs again
            return
        self._accelerator = accelerator
        accelerator.register_save_state_pre_hook(self._write)
        accelerator.register_load_state_pre_hook(self._read)
        load, prepare = accelerator.load_state, accelerator.prepare

        def load_state(*arguments: Any, **named: Any) -> None:
            load(*arguments, **named)
            self._after_load()

        def prepared(*arguments: Any, **named: Any) -> Any:
            found = prepare(*arguments, **named)
            parts = found if isinstance(found, tuple) else (found,)
            self.loom.measure(*(part for part in parts if isinstance(part, Module)))
            return found

        replaced(accelerator, "load_state", load_state)
        replaced(accelerator, "prepare", prepared)

    def manage(self, *parts: Any, measure_update: bool = False, **options: Any) -> None:
        """Vote, and register the knobs of the Accelerator and of the optimizers."""
        accelerator = self._accelerator
        self._join_votes()
        has_engine = str(getattr(accelerator, "distributed_type", "")).endswith("DEEPSPEED")
        # Of several optimizers the script's own clipping may be over all, or not.
        is_one = sum(hasattr(part, "zero_grad") for part in parts) == 1
        clips = is_one and not has_engine
        self._register(parts, measure_update=measure_update, clips=clips)
        if not has_engine:  # which counts and clips by itself
            if self._clipping is None:
                self._clipping = Clipping(accelerator, self._leave_clipping, self.note_norm)
            self.register_count(
                "gradient_accumulation_steps",
                lambda: accelerator.gradient_accumulation_steps,
                self._accumulate,
                "batches whose gradients are added up before each optimizer step",
            )
        if self._folder is not None:
            self.loom.on_checkpoint(self.save_now)
        self._is_managed = True
        self._restore_knobs()
        self._warn_of_loaders()
        self.worker.starting.built()

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Return the step, and the norm of its gradients before the script's clipping."""
        number, own = super().boundary(step)
        if self._clipping is not None and self._clipping.norm is not None:
            own = {**own, "grad_norm": self._clipping.norm}
        return number, own

    def leave(self) -> None:
        """Save, if there is a folder to save in; the script's loop ends."""
        if self._folder is not None:
            self.save_now()

    def save_now(self) -> None:
        """Save by ``accelerator.save_state``, which all ranks have to call."""
        accelerator, folder = self._accelerator, self._folder
        assert folder is not None
        whole_one = folder / f"step-{self.save()['step']}"
        part = whole_one.with_name(f".{whole_one.name}")

        def remove() -> None:
            if accelerator.is_main_process:
                shutil.rmtree(part, ignore_errors=True)

        def publish() -> None:
            if accelerator.is_main_process:
                shutil.rmtree(whole_one, ignore_errors=True)
                part.rename(whole_one)
                for path in [*self._found()[self._keep :], *folder.glob(".step-*")]:
                    shutil.rmtree(path, ignore_errors=True)

        self.together(lambda: accelerator.save_state(str(part)), remove)
        accelerator.wait_for_everyone()
        self.together(publish, remove)
        accelerator.wait_for_everyone()

    def load_newest(self) -> int:
        """Load the newest checkpoint; return its number of steps, 0 without one."""
        for path in self._found():
            try:
                self._saved_in(path)
            except CheckpointError as error:  # the same on all ranks
                _logger.warning("%s: the checkpoint before it is loaded, if there is one", error)
                continue
            self._accelerator.load_state(str(path))
            return int(path.name.removeprefix("step-"))
        return 0

    def _found(self) -> list[Path]:
        """Return the complete checkpoints of the folder, the newest first."""
        folder = self._folder
        paths = list(folder.iterdir()) if folder is not None and folder.is_dir() else []
        numbered = [(int(name[1]), p) for p in paths if (name := _NAME.fullmatch(p.name))]
        return [path for _, path in sorted(numbered, reverse=True)]

    def _accumulate(self, count: int) -> None:
        self._accelerator.gradient_accumulation_steps = count
        self._accelerator.step = 0  # the next step takes so many batches, too

    def _leave_clipping(self) -> None:
        """Let the script's clipping have the knob: never both act."""
        clipping, actuators = self._clipping, self.worker.actuators
        assert clipping is not None
        limit, given = actuators.values.get("clip_norm"), self._restored.get("clipping")
        if limit and given not in (None, clipping.given):
            line = "clip_norm: the script has %s, no longer %s: the checkpoint's %s is ignored"
            _logger.warning(line, clipping.given, given, limit)
            actuators.set_knob("clip_norm", 0.0)
        elif limit:  # from a checkpoint
            clipping.wanted = float(limit)
            actuators.set_knob("clip_norm", 0.0)
        self.register_clipping(clipping.get, clipping.set)

    def _write(self, models: Any, weights: Any, output_dir: Any) -> None:
        if self._accelerator.is_main_process:
            begun = self._accelerator.gradient_state.dataloader_references
            epochs = [
                getattr(loader, "iteration", 0)
                + (loader in begun and getattr(loader, "end_of_dataloader", False))
                for loader in self._accelerator._dataloaders
            ]
            given = self._clipping.given if self._clipping is not None else None
            state = {"loom": self.loom.state_dict(), "epochs": epochs, "clipping": given}
            (Path(output_dir) / _FILE).write_text(json.dumps(state), encoding="utf-8")

    def _read(self, models: Any, input_dir: Any) -> None:
        self._restored = self._saved_in(Path(input_dir))
        self._restore_knobs()

    def _saved_in(self, folder: Path) -> Mapping[str, Any]:
        """Return what :meth:`_write` has written, empty for a checkpoint without it."""
        path = folder / _FILE
        if not path.exists():
            return {}
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            is_ours = isinstance(saved["loom"]["knobs"], dict) and "step" in saved["loom"]
            is_ours = is_ours and all(isinstance(epoch, int) for epoch in saved["epochs"])
        except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error_line(error)}") from None
        if not is_ours:
            raise CheckpointError(f"{path}: need knobs, a step and epochs of torchLoom, was others")
        return dict(saved)

    def _restore_knobs(self) -> None:
        if self._restored and self._is_managed:
            self.loom.load_state_dict(self._restored["loom"])

    def _after_load(self) -> None:
        """Restore what ``load_state`` leaves out: the loaders' epochs, and exact random states."""
        loaders = self._accelerator._dataloaders
        for loader, epoch in zip(loaders, self._restored.get("epochs", ()), strict=False):
            if hasattr(loader, "iteration"):
                loader.iteration = epoch
        for loader in loaders:
            draw_nothing_on_resume(getattr(loader, "base_dataloader", loader))

    def _warn_of_loaders(self) -> None:
        accelerator = self._accelerator
        if self.loom.inert or not accelerator.is_main_process:
            return
        if any(
            not getattr(one, "use_stateful_dataloader", False) for one in accelerator._dataloaders
        ):
            _logger.warning(
                "accelerate: a prepared loader cannot resume in mid-epoch by itself: after a "
                "restart its first batches come again; pass Accelerator(dataloader_config="
                "DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)),"
                " or skip them by accelerator.skip_first_batches"
            )
