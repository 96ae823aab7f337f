"""Models and optimizers as ``torch.distributed.checkpoint`` stores them: ``checkpoint export``."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.exports.content import Content


def export(checkpoint: Checkpoint, folder: Path, read: Callable[[int], None]) -> None:
    """Write what ``dcp.save`` would, given ``get_state_dict``'s states under the parts' names.

    Optimizers' states have the full names of the parameters.

    Parameters
    ----------
    checkpoint : Checkpoint
        What is exported.
    folder : Path
        An empty folder.
    read : callable
        Takes the bytes of each piece that was read.

    Raises
    ------
    CheckpointError
        If the checkpoint has no model, or is damaged.
    """
    content = Content(checkpoint, read)
    state = {name: content.values[name] for name in content.kinds("model")}
    for name in content.kinds("optim"):
        state[name] = _by_full_names(content.values[name])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1)
            save(state, storage_writer=writer, planner=_Reading(content), no_dist=True)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if isinstance(cause, CheckpointError):
            raise cause from None
        raise CheckpointError(f"{checkpoint.folder}: {cause}") from None


class _Reading(DefaultSavePlanner):
    """Reads each tensor of a checkpoint when it is to be written: one at a time is in memory."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content

    def lookup_object(self, index: Any) -> Any:
        """Return the content of an item."""
        found = super().lookup_object(index)
        return self._content.whole(found) if isinstance(found, Tensor) else found


def _by_full_names(state: Mapping[str, Any]) -> Any:
    """Return an optimizer's state as ``get_optimizer_state_dict`` does."""
    if set(state) != {"state", "groups"}:
        return state
    return {
        "state": {_of_model(name): of for name, of in state["state"].items()},
        "param_groups": [
            group | {"params": [_of_model(name) for name in group["params"]]}
            for group in state["groups"]
        ],
    }


def _of_model(name: str) -> str:
    """Return a parameter's name in its own model, which a second one has after its number."""
    number, colon, rest = name.partition(":")
    return rest if colon and number.isdecimal() else name
