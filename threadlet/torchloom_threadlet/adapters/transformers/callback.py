"""The callback that attaches a Trainer of transformers."""

import inspect
import logging
import time
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.adapters.replaced import replaced
from torchloom_threadlet.adapters.transformers.adapter import TransformersAdapter
from torchloom_threadlet.adapters.transformers.epochs import Epochs, Rewound
from torchloom_threadlet.adapters.transformers.place import Place, saved_state
from torchloom_threadlet.loom import Loom

_logger = logging.getLogger(__name__)

_PLACES = 4
"""Numbers of a position in the data: epoch, batches, batch size, accumulation."""


class TorchLoomCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Attach each rank of a Trainer to the Weaver, from the begin of ``train`` to its end.

    Its part of a checkpoint holds the run-fenced knobs, and the position in the data where batch
    size or accumulation have changed.

    Attributes
    ----------
    loom : Loom
        While the Trainer trains; inert without a Weaver.
    saved : dict
        What the checkpoint held from which the Trainer has restored the callback itself.

    Examples
    --------
    >>> from torchloom_threadlet.adapters.transformers import TorchLoomCallback
    >>> trainer = Trainer(model, callbacks=[TorchLoomCallback()])  # doctest: +SKIP
    """

    loom: Loom

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}
        self._adapter: TransformersAdapter | None = None
        self._undo: list[Any] = []
        self._logged: dict[str, Any] = {}
        self._losses: list[Tensor] = []
        self._grad_norm: Any = None
        self._script: list[int] = []
        self._since_s, self._tokens = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Attach this rank, register the knobs, and continue from a checkpoint."""
        trainer = _calling_trainer()
        if trainer is None:
            _logger.warning("TorchLoomCallback: need a transformers.Trainer that trains, was none")
            return
        callbacks = trainer.callback_handler.callbacks
        if next(one for one in callbacks if isinstance(one, TorchLoomCallback)) is not self:
            _logger.warning("Trainer has two TorchLoomCallbacks: only the first one acts")
            return
        self._let_go()  # a Trainer begins anew with a smaller batch size if memory is short
        self._script = _script_of(trainer)  # before a checkpoint's knobs
        self.loom = attach_framework(TransformersAdapter(), rank=args.process_index)
        self._adapter = adapter = cast("TransformersAdapter", self.loom.adapter)
        is_attached = not self.loom.inert
        self._epochs = epochs = Epochs(
            trainer, is_attached=is_attached, note_resumed=adapter.note_saved
        )
        adapter.serve(trainer, epochs)
        self._undo = [epochs.end, *self._watch(trainer)]
        self.loom.manage()
        saved = saved_state(state.stateful_callbacks)
        # A checkpoint from before the callback has no place for its state.
        state.stateful_callbacks.setdefault(type(self).__name__, {"args": {}, "attributes": {}})
        if saved:
            self._restore(saved, args)
        if args.process_index == 0 and is_attached:
            for problem in _problems(args):
                _logger.warning("%s", problem)
        self._since_s, self._tokens = time.perf_counter(), state.num_input_tokens_seen

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> Any:
        """Report an optimizer step, and carry out commands after it."""
        if self._adapter is None:
            return control
        metrics = {} if self.loom.inert else self._metrics(state)
        self.loom.step(state.global_step, **metrics)
        if self._adapter.has_rewound:
            self._adapter.has_rewound = False
            raise Rewound
        self._epochs.end_step()
        return self._trainer.control

    def on_log(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Keep what the Trainer logs for the next step's report."""
        logs = dict(parts.get("logs") or {})
        if "loss" in logs:
            logs["mean_loss"] = logs.pop("loss")
        self._logged |= {name: of for name, of in logs.items() if isinstance(of, int | float)}

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Take note of a checkpoint."""
        if self._adapter is not None:
            trainer = self._trainer
            folder = trainer._get_output_dir(getattr(trainer, "_trial", None))
            self._adapter.note_saved(str(Path(folder) / f"checkpoint-{state.global_step}"))

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Leave on purpose: the end of ``train`` is no failure."""
        if self._adapter is None:
            return
        if self._logged:
            self.loom.note("logged", **self._logged)
        self._let_go()
        self.loom.close()
        self._adapter = None

    def state(self) -> dict[str, Any]:
        """Return the knobs and the position in the data, for a checkpoint."""
        saved: dict[str, Any] = {}
        if self._adapter is not None:
            place = self._epochs.place()._replace(checkpoint=None)
            ranks = int(self._trainer.args.world_size)
            saved = {
                "loom": self.loom.state_dict(),
                "place": list(place[:4]),
                "ranks": ranks,
                "script": self._script,
            }
        return {"args": {}, "attributes": {"saved": saved}}

    def _restore(self, saved: Any, args: Any) -> None:
        place, same = saved.get("place"), saved.get("script") == self._script
        if not same and args.process_index == 0:
            _logger.warning(
                "the script's data, batch size or accumulation is another than in the checkpoint: "
                "the Trainer computes where the data continues"
            )
        if same and saved.get("ranks") == args.world_size and not args.ignore_data_skip:
            self._epochs.start = _place_of(place)
        self.loom.load_state_dict(saved["loom"])

    def _watch(self, trainer: Any) -> list[Any]:
        """Have each batch counted, and its loss and the norm of a step's gradients kept."""
        self._trainer, train, norm_of = trainer, trainer.training_step, trainer._get_grad_norm
        reports, adapter = not self.loom.inert, self._adapter
        assert adapter is not None

        def training_step(*arguments: Any, **named: Any) -> Any:
            loss = train(*arguments, **named)
            self._epochs.count_batch()
            if reports:
                self._losses.append(loss)
            return loss

        def get_grad_norm(*arguments: Any, **named: Any) -> Any:
            self._grad_norm = norm = norm_of(*arguments, **named)
            adapter.note_norm(norm)
            return norm

        undo = [replaced(trainer, "training_step", training_step)]
        if reports:
            undo.append(replaced(trainer, "_get_grad_norm", get_grad_norm))
        return undo

    def _let_go(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def _metrics(self, state: Any) -> dict[str, Any]:
        """Return the step's loss and throughput, and what was logged since the last one."""
        now_s = time.perf_counter()
        elapsed_s = max(now_s - self._since_s, 1e-9)
        found, self._logged = dict(self._logged), {}
        found["samples_per_s"] = self._epochs.samples() / elapsed_s
        if tokens := state.num_input_tokens_seen - self._tokens:
            found["tokens_per_s"] = tokens / elapsed_s
        if self._losses:
            found["loss"] = sum(self._losses[1:], self._losses[0])
        if self._grad_norm is not None:
            found["grad_norm"] = self._grad_norm
        self._losses, self._since_s, self._tokens = [], now_s, state.num_input_tokens_seen
        return found


def _script_of(trainer: Any) -> list[int]:
    """Return what the position in the data depends on: samples, batch size, accumulation."""
    args, data = trainer.args, trainer.train_dataset
    samples = len(data) if hasattr(data, "__len__") else -1
    return [samples, args.per_device_train_batch_size, args.gradient_accumulation_steps]


def _place_of(saved: Any) -> Place:
    counts = [one for one in saved if isinstance(one, int)] if isinstance(saved, list) else []
    if len(counts) != _PLACES or min(counts) < 0:
        raise CheckpointError(f"trainer_state.json: need {_PLACES} counts, was {saved!r:.60}")
    epoch, batches, batch_size, accumulation = counts
    return Place(epoch, batches, batch_size, accumulation)


def _calling_trainer() -> Any:
    """Return the Trainer whose loop calls this callback: it is not among the arguments."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
        frame = frame.f_back
    return None


def _problems(args: Any) -> list[str]:
    """Return why a restart would not continue where the run was, each in one line."""
    found = []
    if getattr(args.save_strategy, "value", args.save_strategy) == "no":
        found.append('save_strategy: a killed run begins anew: need "steps", was "no"')
    if args.save_only_model:
        found.append("save_only_model: a killed run cannot resume from weights alone: need False")
    if args.ignore_data_skip:
        found.append("ignore_data_skip: after a restart other batches are trained on: need False")
    return found
