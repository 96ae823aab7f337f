"""Load the newest checkpoint that is whole into the objects of a script, the same on all ranks."""

import logging
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

from torchloom_core.checkpoints.layout import Folder, read_folder
from torchloom_core.checkpoints.storage import Storage
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.dcp_reader import CheckpointReader
from torchloom_threadlet.checkpoint.json_state import dtype_named
from torchloom_threadlet.checkpoint.owner import Owner
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.state import TrainingState

_LOOK_S = 0.1
_STORING_S = 60.0
"""Time for the writer of a killed run to store what it has."""

_logger = logging.getLogger(__name__)


class Restored(NamedTuple):
    """The checkpoint that was loaded, and the newest one, which may be damaged."""

    folder: Folder
    newest: Folder

    @property
    def is_newest(self) -> bool:
        """Whether the newest one was loaded."""
        return self.folder == self.newest


def restore(
    sources: Sources, state: TrainingState, ranks: SavingRanks, *, in_training: bool = False
) -> Restored | None:
    """Load the newest checkpoint that all ranks can read; None if there is none.

    Nothing is changed before all ranks have read and checked all that they need.

    Parameters
    ----------
    in_training : bool
        Whether the run goes on from what it saved itself: then the remote place, which may take a
        minute to answer, is read only if no other has a checkpoint that can be loaded.

    Raises
    ------
    CheckpointError
        If there are checkpoints and none can be loaded, or the path cannot be listed: training must
        not begin anew in silence.
    """
    if in_training and sources.remote is not None:
        with suppress(CheckpointError):
            if near := _restore(sources, state, ranks, {sources.remote.name}):
                return near
    elif not in_training and ranks.rank == 0:
        _wait_for_last_writer(sources.path)
    return _restore(sources, state, ranks, set())


def _restore(
    sources: Sources, state: TrainingState, ranks: SavingRanks, left_out: set[str]
) -> Restored | None:
    names = _names(sources, ranks, left_out)
    found = sorted(filter(None, map(read_folder, names)), reverse=True)
    problem = ""
    for folder in found:
        loaded, name = None, str(folder)
        try:
            loaded = _read(sources.of(name), name, state, ranks)
        except Exception as error:  # noqa: BLE001 - another one may be whole
            problem = _line(error, name)
            _logger.warning("%s", problem)
        if ranks.all(loaded is not None) and loaded is not None:
            try:
                state.load(*loaded)
            except Exception as error:
                text = f"{_line(error, name)}: parts of it are loaded, and training cannot begin"
                raise CheckpointError(text) from error
            return Restored(folder, found[0])
    if found:
        raise CheckpointError(
            problem or f"{sources.path.name}: another rank cannot read a checkpoint"
        )
    return None


def reload(sources: Sources, name: str, state: TrainingState, ranks: SavingRanks) -> None:
    """Load a checkpoint again that these ranks have just saved, but not what each rank has alone.

    Raises CheckpointError on all ranks, with nothing changed, if one cannot read it.
    """
    loaded, problem = None, ""
    try:
        loaded = _read(sources.of(name), name, state, ranks)
    except Exception as error:  # noqa: BLE001 - the others wait for this rank's answer
        problem = _line(error, name)
    if why := next(filter(None, ranks.gather(problem)), ""):
        raise CheckpointError(why)
    if loaded is not None:
        tensors, shared, _ = loaded
        state.load(tensors, shared, None)


def _names(sources: Sources, ranks: SavingRanks, left_out: set[str]) -> set[str]:
    """Return the complete checkpoints of the places, as all ranks know them together."""
    mine, problem, failed = set(), "", {*left_out}
    for source in sources.listed:
        if source.name in left_out:
            continue
        try:
            mine |= {str(one) for one in complete_folders(source)}
        except OSError as error:
            failed.add(source.name)
            text = f"{source.name}: cannot be read: {error.strerror or error}"
            if source is sources.path:
                problem = text
            else:
                _logger.warning("%s", text)
    if problem := ranks.first(problem):
        raise CheckpointError(problem)
    sources.leave_out(ranks.first("\n".join(failed)).split("\n"))
    return set("\n".join(ranks.gather("\n".join(mine))).split("\n"))


def _wait_for_last_writer(storage: Storage) -> None:
    """Let the writer of an ended run store what it has; it may be the newest checkpoint."""
    end_s = time.monotonic() + _STORING_S
    try:
        while there := storage.lock("a run that starts"):
            owner = Owner.read(there)
            is_left_over = owner is not None and owner.has_ended
            if not is_left_over or time.monotonic() > end_s:
                text = "%s: %s saves its checkpoints there: this run cannot meanwhile"
                _logger.warning(text, storage.name, there)
                return
            time.sleep(_LOOK_S)
    except OSError as error:  # what is there may be readable all the same
        text = "%s: nothing can be saved there: %s"
        _logger.warning(text, storage.name, error.strerror or error)
        return
    storage.unlock()


def _read(
    sources: Sequence[Storage], name: str, state: TrainingState, ranks: SavingRanks
) -> tuple[dict[str, torch.Tensor], Any, Any]:
    checkpoint, rank = Checkpoint(sources, name), ranks.rank
    shapes, dtypes = {}, {}
    for _, piece in checkpoint.pieces.values():
        shapes[piece.name] = piece.shape
        dtypes[piece.name] = dtype_named(piece.dtype)
    of_others = tuple(f"rank{shard.rank}." for shard in checkpoint.shards if shard.rank != rank)
    wanted = {name: shape for name, shape in shapes.items() if not name.startswith(of_others)}
    own = next((shard.own for shard in checkpoint.shards if shard.rank == rank), None)
    shared = checkpoint.shards[0].shared
    state.refuse_other_parts(shared, own)
    fresh = state.target(wanted, dtypes)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(fresh, storage_reader=CheckpointReader(checkpoint), no_dist=True)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise (
            cause if isinstance(cause, CheckpointError) else CheckpointError(f"{name}: {cause}")
        ) from None
    if checkpoint.is_small:
        _logger.warning("%s is small: the state is rounded, not the same to the bit", name)
    for line in dict.fromkeys(checkpoint.passed_over):
        _logger.warning("%s; it is read from another place", line)
    if own is None:
        _logger.warning(
            "%s was saved by %d ranks: rank %d begins with random states and a position in the "
            "data of its own",
            name, len(checkpoint.shards), rank,
        )  # fmt: skip
    if rank == 0 and len(checkpoint.shards) != ranks.count:
        _logger.warning(
            "%s was saved by %d ranks, and is loaded by %d: positions in the data count the "
            "batches of one rank, so samples of this epoch may repeat or be left out",
            name, len(checkpoint.shards), ranks.count,
        )  # fmt: skip
    return fresh, shared, own


def _line(error: Exception, name: str) -> str:
    text = str(error) or type(error).__name__
    return text if isinstance(error, CheckpointError) and name in text else f"{name}: {text}"
