"""The ways to save that are compared: each saves a training state, and says when it is on file."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from torchloom_core.checkpoints.storage import storage_at
from torchloom_core.wire.checkpoint_tiers import PATH
from torchloom_threadlet.checkpoint.checkpointer import Checkpointer
from torchloom_threadlet.checkpoint.loop import TrainingLoop
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.tiers import Tier
from torchloom_threadlet.checkpoint.writer.orders import TierPlace


class Method(Protocol):
    """One way to save."""

    def begin(self, step: int) -> None:
        """Save, or begin to."""

    def after_step(self, step: int) -> bool:
        """Take note of a finished step; return whether the save is on file."""


class State:
    """The model and the optimizer, as each method saves them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return references to all tensors."""
        state = self.optimizer.state_dict()["state"]
        moments = {f"{n}.{key}": value for n, of in state.items() for key, value in of.items()}
        return {"model": self.model.state_dict(), "optimizer": moments}


class Synced:
    """``torch.save`` and ``fsync``: training waits for both."""

    def __init__(self, state: State, folder: Path) -> None:
        self._state, self._folder = state, folder

    def begin(self, step: int) -> None:
        """Save."""
        path = self._folder / f"{step}.pt"
        with path.open("wb") as file:
            torch.save(self._state.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

    def after_step(self, step: int) -> bool:
        """Return True."""
        return True


class Dcp(Synced):
    """``torch.distributed.checkpoint.save``, which syncs."""

    def begin(self, step: int) -> None:
        """Save."""
        dcp.save(self._state.state_dict(), checkpoint_id=self._folder / str(step))
        shutil.rmtree(self._folder / str(step))


class Threaded(Synced):
    """``async_save`` in a thread, with one stager that is kept."""

    def __init__(self, state: State, folder: Path) -> None:
        super().__init__(state, folder)
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._pending: Any = None

    def begin(self, step: int) -> None:
        """Copy, and begin to save."""
        self._pending = dcp.async_save(
            self._state.state_dict(),
            checkpoint_id=self._folder / str(step),
            async_stager=self._stager,
        )

    def after_step(self, step: int) -> bool:
        """Return whether the thread is done."""
        is_done = bool(self._pending.done())
        if is_done:
            shutil.rmtree(self._folder / str(step), ignore_errors=True)
        return is_done


class Loop(TrainingLoop):
    """A loop without a loom, that takes notes itself."""

    run, step = "cost", -1

    def __init__(self, note: Callable[[str, dict[str, Any]], object]) -> None:
        self.note = note  # type: ignore[method-assign, assignment]

    def saves(self) -> bool:
        """Return True: nobody else does."""
        return True

    def may_rewind(self, rewind: Callable[[], None]) -> None:
        """Never rewind."""


class Ours:
    """``loom.checkpoints``: copied beside training, stored by a process of the idle class."""

    def __init__(self, state: State, folder: Path) -> None:
        self._saved: set[int] = set()
        self._wanted = -1
        place = str(folder / "ours")
        tier = Tier(TierPlace(name=PATH, place=place, keep=2), every_s=1e9)
        path = storage_at(place)
        self._checkpointer = Checkpointer(
            (state.model, state.optimizer),
            {},
            [tier],
            Sources(path, [[path]], [path]),
            SavingRanks(),
            Loop(self._note),
        )
        for _ in range(2):  # two steps before a save, as in any run
            self._checkpointer.at_boundary(0)

    def _note(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "checkpoint_saved":
            self._saved.add(int(fields["step"]))

    def begin(self, step: int) -> None:
        """Request a save at this step."""
        self._wanted = step
        self._checkpointer.save()
        self._checkpointer.at_boundary(step)

    def after_step(self, step: int) -> bool:
        """Return whether the manifest is written."""
        self._checkpointer.at_boundary(step)
        return self._wanted in self._saved

    def close(self) -> None:
        """Let the writer end."""
        self._checkpointer.close()


SYNCED, THREADED, OURS = "torch.save + fsync", "async_save, thread", "loom.checkpoints"
METHODS: dict[str, Callable[[State, Path], Method]] = {
    SYNCED: Synced,
    "dcp.save": Dcp,
    THREADED: Threaded,
    OURS: Ours,
}


def begin_alone() -> None:
    """Make the process group of one rank that ``async_save`` needs."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29577")
    dist.init_process_group("gloo", rank=0, world_size=1)
