"""The callback that attaches a Lightning Trainer."""

import logging
import os
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import torch

from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.adapters.lightning.adapter import LightningAdapter, Rewound
from torchloom_threadlet.adapters.lightning.batch_size import samples_in
from torchloom_threadlet.adapters.lightning.loaders import problem_of
from torchloom_threadlet.adapters.random_states import gathered_random_states
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.device.steps import BACKWARD, FORWARD
from torchloom_threadlet.loom import Loom

_logger = logging.getLogger(__name__)

# It is published under two names; a Trainer of either takes the other's callback.
_PACKAGE = "lightning.pytorch" if find_spec("lightning") else "pytorch_lightning"
Callback: Any = import_module(_PACKAGE).Callback


class TorchLoomCallback(Callback):  # type: ignore[misc]
    """Attach each rank of a Trainer to the Weaver, from the begin of ``fit`` to its end.

    Its part of a checkpoint holds the random states of all ranks and the run-fenced knobs, so that
    ``fit(ckpt_path=...)`` continues as an undisturbed run.

    Parameters
    ----------
    folder : str or PathLike, optional
        Where checkpoints on request and at a drain go, as ``last-step=N.ckpt``; by default that
        of the Trainer's first ModelCheckpoint, where ``fit(ckpt_path="last")`` finds them.
    keep : int
        The newest checkpoints on request that stay there.

    Attributes
    ----------
    loom : Loom
        From ``setup`` on; inert without a Weaver.

    Examples
    --------
    >>> from lightning.pytorch import Trainer
    >>> from torchloom_threadlet.adapters.lightning import TorchLoomCallback
    >>> trainer = Trainer(callbacks=[TorchLoomCallback()], accelerator="cpu", logger=False)
    """

    loom: Loom

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"TorchLoomCallback: need keep >= 1, was {keep}")
        self._folder, self._keep = folder, keep
        self._adapter: LightningAdapter | None = None
        self._ranks: SavingRanks | None = None
        self._stepped, self._samples, self._since_s = 0, 0, 0.0
        self._sent: dict[str, Any] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Attach this rank."""
        if stage != "fit":
            return
        self.loom = attach_framework(
            LightningAdapter(self._folder, self._keep), rank=trainer.global_rank
        )
        self._adapter = cast("LightningAdapter", self.loom.adapter)
        self._adapter.watch(trainer)
        self._ranks = SavingRanks()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Register the knobs, and continue from a checkpoint that was loaded."""
        adapter = self._adapter
        if adapter is None:
            return
        if not self._since_s:  # not again after a rewind
            self.loom.manage()
            problem = problem_of(trainer.fit_loop._combined_loader.flattened)
            if problem and trainer.is_global_zero:
                _logger.warning("%s", problem)
            if trainer.ckpt_path:
                adapter.note_saved(str(trainer.ckpt_path))
        adapter.start()
        self._stepped, self._since_s = trainer.global_step, time.perf_counter()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin an epoch with the batch size that was set."""
        if self._adapter is not None:
            self._adapter.batch_size.begin_epoch()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin the forward; without DDP, ``training_step`` is called past a module's hooks."""
        if self._adapter is not None:
            self._adapter.enter(FORWARD)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Begin the backward."""
        if self._adapter is not None:
            self._adapter.enter(BACKWARD)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report an optimizer step, and carry out commands after it."""
        if self._adapter is None:
            return
        self._samples += samples_in(batch)
        if trainer.global_step == self._stepped:
            return
        self._stepped = trainer.global_step
        metrics = {} if self.loom.inert else self._metrics(trainer, outputs)
        self.loom.step(trainer.global_step, **metrics)
        if self._adapter.has_rewound:
            raise Rewound

    def state_dict(self) -> dict[str, Any]:
        """Return the knobs, the batch sizes and the random states of all ranks."""
        if self._ranks is None or self._adapter is None:
            return {}
        return {
            "loom": self.loom.state_dict(),
            "batch_size": self._adapter.batch_size.state_dict(),
            "random": gathered_random_states(self._ranks),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts."""
        if self._adapter is not None:
            self._adapter.restored = dict(state_dict)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the Trainer as it was; the loom reports how the process ends."""
        if self._adapter is not None:
            self._adapter.unwatch()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave on purpose: the end of ``fit`` is no failure."""
        if stage == "fit" and self._adapter is not None:
            self._adapter.unwatch()
            self.loom.close()
            self._adapter, self._since_s = None, 0.0

    def _metrics(self, trainer: Any, outputs: Any) -> dict[str, Any]:
        """Return the step's loss, throughput, and what the module has logged since the last one."""
        now_s = time.perf_counter()
        found: dict[str, Any] = {"samples_per_s": self._samples / max(now_s - self._since_s, 1e-9)}
        self._samples, self._since_s = 0, now_s
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):
            found["loss"] = loss
        logged = trainer.callback_metrics
        found |= {name: of for name, of in logged.items() if self._sent.get(name) is not of}
        self._sent = dict(logged)
        return found
