"""Random states in a framework's checkpoint: of all ranks as text, and exact after a restart."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from torchloom_threadlet.adapters.replaced import replaced
from torchloom_threadlet.checkpoint.json_state import decode, encode
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.state import random_states, set_random_states


def gathered_random_states(ranks: SavingRanks) -> list[str]:
    """Return each rank's random states, on all ranks; all have to call it."""
    states = {name: _as_bytes(state) for name, state in random_states().items()}
    return ranks.gather(json.dumps(encode(states, "random", {})))


def restore_random_state(texts: Sequence[str], rank: int) -> bool:
    """Restore this rank's random states; return False if there were fewer ranks then."""
    if rank >= len(texts):
        return False
    states = decode(json.loads(texts[rank]), {})
    set_random_states({name: _as_tensors(state) for name, state in states.items()})
    return True


def draw_nothing_on_resume(loader: Any) -> None:
    """Let an iterator that continues a loader's epoch leave the random states alone.

    Every iterator of a data loader draws a seed when it begins. Without a restart it had drawn it
    before the checkpoint.

    Parameters
    ----------
    loader : torchdata.stateful_dataloader.StatefulDataLoader
        Whose position is loaded, now or later. Any other object is left as it is.
    """
    if not hasattr(loader, "next_iter_state") or "_get_iterator" in vars(loader):
        return
    begin = loader._get_iterator

    def continued() -> Any:
        if loader.next_iter_state is None:
            return begin()
        states = random_states()
        try:
            return begin()
        finally:
            set_random_states(states)

    replaced(loader, "_get_iterator", continued)


def _as_bytes(state: Any) -> Any:
    if isinstance(state, list):  # one for each device
        return [_as_bytes(one) for one in state]
    return bytes(state.tolist()) if isinstance(state, torch.Tensor) else state


def _as_tensors(state: Any) -> Any:
    if isinstance(state, list):
        return [_as_tensors(one) for one in state]
    if isinstance(state, bytes):
        return torch.tensor(list(state), dtype=torch.uint8, device="cpu")
    return state
