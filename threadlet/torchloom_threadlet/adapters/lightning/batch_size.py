"""The batch size of Lightning's training data, as a knob that takes effect with the next epoch."""

from collections.abc import Iterable, Mapping
from typing import Any


class BatchSize:
    """The batch size of a trainer's loaders, those that draw batches by a torch ``BatchSampler``.

    A loader reads its size as an epoch begins, so a change waits for the next one; a checkpoint
    keeps the size of the epoch in progress too, as the position in it is counted in such batches.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._in_force = 0

    def is_known(self) -> bool:
        """Return whether a loader has a batch size that can change."""
        return bool(self._samplers())

    def get(self) -> int:
        """Return the size of the next epoch's batches, 0 if it is not known."""
        return next((int(one.batch_size) for one in self._samplers()), 0)

    def set(self, size: int) -> None:
        """Set the size of the next epoch's batches."""
        for sampler in self._samplers():
            sampler.batch_size = size

    def begin_epoch(self) -> None:
        """Take note that an epoch begins, and let Lightning count its batches anew."""
        size = self.get()
        loop = self._trainer.fit_loop
        if self._in_force and size != self._in_force and self._trainer.limit_train_batches == 1.0:
            loaders = loop._combined_loader
            loaders.limits = [len(loader) for loader in loaders.flattened]
            loop.max_batches = len(loaders)
            iter(loop._data_fetcher)
        self._in_force = size

    def state_dict(self) -> dict[str, int]:
        """Return the sizes of this epoch and of the next one."""
        return {"now": self._in_force, "next": self.get()}

    def begin_restored(self, state: Mapping[str, int]) -> None:
        """Set the size of the epoch that is continued, before its loaders resume."""
        if state["now"]:
            self.set(state["now"])
            self._in_force = state["now"]

    def end_restored(self, state: Mapping[str, int]) -> None:
        """Set the size of the next epoch, once the loaders have resumed."""
        if state["next"]:
            self.set(state["next"])

    def _samplers(self) -> list[Any]:
        loaders: Iterable[Any] = getattr(self._trainer.fit_loop._combined_loader, "flattened", ())
        samplers = (getattr(loader, "batch_sampler", None) for loader in loaders)
        return [one for one in samplers if type(getattr(one, "batch_size", None)) is int]


def samples_in(batch: Any) -> int:
    """Return the number of samples of a batch: the length of its first tensor, 0 without one."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, Mapping | list | tuple):
        return 0
    return next((count for part in parts if (count := samples_in(part))), 0)
