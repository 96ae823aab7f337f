"""Where a Trainer is in its data: what a checkpoint keeps beside its number of steps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

CALLBACK = "TorchLoomCallback"
"""Under this name a Trainer keeps the callback's state in ``trainer_state.json``."""


class Place(NamedTuple):
    """Where training continues.

    A Trainer computes it from its number of steps, with the batch size and the accumulation of the
    script; both may have changed since.

    Attributes
    ----------
    epoch : int
        The epoch that continues, from 0.
    batches : int
        How many batches of it each rank has trained on.
    batch_size : int
        The samples of a batch of each rank in this epoch; 0 if it is not known.
    accumulation : int
        The batches of an optimizer step; 0 if it is not known.
    checkpoint : str or None
        Whose random states are restored after the first batches are drawn.
    """

    epoch: int
    batches: int
    batch_size: int = 0
    accumulation: int = 0
    checkpoint: str | None = None


def saved_state(callbacks: Any) -> Mapping[str, Any]:
    """Return what the callback has kept in a checkpoint; empty if it took no part."""
    kept = callbacks.get(CALLBACK) if isinstance(callbacks, Mapping) else None
    if isinstance(kept, list):
        kept = kept[-1] if kept else None
    attributes = kept.get("attributes") if isinstance(kept, Mapping) else None
    saved = attributes.get("saved") if isinstance(attributes, Mapping) else None
    return saved if isinstance(saved, Mapping) else {}
