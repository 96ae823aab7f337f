"""A checkpointer that can leave the whole state in the memory of nodes, and load it again."""

from contextlib import suppress
from typing import Any

import torch

from torchloom_core.checkpoints.layout import Folder
from torchloom_core.wire.checkpoint_tiers import MEMORY
from torchloom_threadlet.checkpoint.checkpointer import Checkpointer
from torchloom_threadlet.checkpoint.nodes import Nodes
from torchloom_threadlet.checkpoint.restore import reload

_WRITER_S = 10.0


class ParkingCheckpointer(Checkpointer):
    """A checkpointer whose process can wait without its state.

    Attributes
    ----------
    nodes : Nodes
        Those whose memory keeps it.
    is_parked : bool
        Whether the weights have no memory at this moment.
    """

    def __init__(self, *arguments: Any, nodes: Nodes) -> None:
        super().__init__(*arguments)
        self.nodes = nodes
        self.is_parked = False
        self._folder = ""
        self._freed: list[tuple[torch.UntypedStorage, int]] = []

    def park(self, name: str) -> str:
        """Save in the memory of nodes, and free what the state takes; on all ranks at once.

        Returns what was done. Raises as :meth:`store` does; nothing is freed then.
        """
        self.store(name, MEMORY)
        self._folder = str(Folder(self._generation, self._loop.step, self._token))
        self._saver.close(_WRITER_S)  # another process may save at the path from now on
        self._outcomes.give_up()
        self.nodes.park()
        self.is_parked = True
        self._free()
        freed = sum(size for _, size in self._freed)
        return f"{freed / 1e6:.1f} MB of weights are freed"

    def load(self, name: str) -> None:
        """Load the state again; on all ranks at once.

        Raises
        ------
        CheckpointError
            On all ranks, if one cannot read it. They are still parked.
        TimeoutError
            On all ranks, if one has not come within 10 s.
        """
        if not self.is_parked:
            return
        self._ranks.meet(name)
        for storage, size in self._freed:
            storage.resize_(size)
        reload(self._sources, self._folder, self._state, self._ranks)
        self._freed = []
        self.nodes.come_back()
        self.is_parked = False

    def is_replaced(self) -> bool:
        """Return whether other processes have loaded the parked state, or this one is to end."""
        return self.is_parked and (self._leaves or bool(self.nodes.other_trainers()))

    def at_boundary(self, step: int, *, is_last: bool = False) -> None:
        """Save as others do; nothing is left to save of a parked state."""
        if not self.is_parked:
            super().at_boundary(step, is_last=is_last)

    def _free(self) -> None:
        """Take the memory of weights, gradients and optimizer states, where torch allows it."""
        for optimizer in self._state.steppers:
            optimizer.state.clear()
        for model in self._state.models.values():
            for weight in model.parameters():
                weight.grad = None
                own = weight.to_local() if hasattr(weight, "to_local") else weight
                storage = own.detach().untyped_storage()
                size = storage.nbytes()
                with suppress(RuntimeError):  # memory of another owner
                    storage.resize_(0)
                    self._freed.append((storage, size))
        torch.cuda.empty_cache()
