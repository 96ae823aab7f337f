"""Resume Lightning's loaders where a checkpoint was taken: in mid-epoch, or between two epochs.

Lightning alone sets the epoch of a sampler once its loader has begun, with the order of the first
epoch; it runs an epoch without a batch for a loader that is at its end; and with ``max_steps`` it
counts an epoch twice that was saved at its end, or in which ``fit`` was stopped.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from torchloom_threadlet.checkpoint.loader_state import samplers_by_epoch


def resume_loaders(loop: Any, load_states: Callable[[], None]) -> bool:
    """Load the loaders' states for the loop that begins, and return whether an epoch begins too.

    Parameters
    ----------
    loop : FitLoop
        Whose progress is loaded, and that is about to make the loaders' iterators.
    load_states : callable
        Lightning's own function.
    """
    epoch, batches = loop.epoch_progress, loop.epoch_loop.batch_progress
    is_over, was_ended = batches.is_last_batch, epoch.current.processed == epoch.current.ready
    loaders = loop._combined_loader.flattened
    if was_ended and not is_over:  # fit was stopped in the midst of it
        for progress in (epoch.current, epoch.total):
            progress.processed = progress.completed = progress.started - 1
    in_progress = epoch.current.ready - 1
    _set_epoch(loaders, in_progress)
    load_states()
    if not is_over:
        return False
    for loader in loaders:
        if hasattr(loader, "load_state_dict"):
            deque(loader, maxlen=0)  # nothing is left: its next iterator begins an epoch
    _set_epoch(loaders, in_progress + 1)
    if was_ended:
        for each in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
            each._restarting = False
    return True


def _set_epoch(loaders: Iterable[Any], epoch: int) -> None:
    for loader in loaders:
        for sampler in samplers_by_epoch(loader):
            sampler.set_epoch(epoch)
