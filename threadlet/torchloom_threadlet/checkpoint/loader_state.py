"""Data loaders with a state of their own, such as torchdata's: what a resume has to see to."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.floor.errors import CheckpointError


def is_loader(part: Any) -> bool:
    """Return whether a part is a data loader, not a sampler or anything else with a state."""
    return hasattr(part, "num_workers") and hasattr(part, "__iter__")


def samplers_by_epoch(loader: Any) -> list[Any]:
    """Return a loader's samplers whose order follows from the epoch."""
    samplers = (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    return [one for one in samplers if hasattr(one, "set_epoch")]


def resume_loader(loader: Any, state: Any) -> None:
    """Load a loader's state, and begin its iterator.

    The begin of an iterator draws a random number, which an undisturbed run does not do here: so it
    has to precede the restore of the random states. Where the order of the data follows from the
    epoch, the script sets that first, and the iterator begins in its loop.
    """
    loader.load_state_dict(state)
    if not samplers_by_epoch(loader):
        loader.state_dict()


def refuse_other_workers(name: str, loader: Any, state: Any) -> None:
    """Raise CheckpointError if a state as JSON was saved with another number of workers.

    torchdata finds this only in the loop, by an assertion.
    """
    saved = _workers(state)
    if saved is not None and saved != loader.num_workers:
        raise CheckpointError(f"{name}: need num_workers={saved}, was {loader.num_workers}")


def _workers(state: Any) -> int | None:
    """Return the number of workers that a state of torchdata's is of; None if it is another's."""
    if not isinstance(state, Mapping):
        return None
    if "_num_yielded" in state:
        return 0
    try:
        return int(state["_snapshot"]["_main_snapshot"]["_num_workers"])
    except (KeyError, TypeError, ValueError):
        return None
