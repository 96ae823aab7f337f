"""Random states in a framework's checkpoint: of all ranks as text, and exact after a restart."""

import json
from collections.abc import Sequence
from typing import Any

import torch

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


class StatesUntilForward:
    """Restores the present random states at the next forward pass of a model that trains.

    A loader's iterator draws a seed when it begins: once in a run without a restart, and once
    more after each.
    """

    def __init__(self, models: list[Any]) -> None:
        self._states = random_states()
        self._handles = [model.register_forward_pre_hook(self._restore) for model in models]

    def end(self) -> None:
        """Restore nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _restore(self, model: Any, arguments: Any) -> None:
        if model.training and self._handles:
            self.end()
            set_random_states(self._states)


def _as_bytes(state: Any) -> Any:
    if isinstance(state, list):  # one for each device
        return [_as_bytes(one) for one in state]
    return bytes(state.tolist()) if isinstance(state, torch.Tensor) else state


def _as_tensors(state: Any) -> Any:
    if isinstance(state, list):
        return [_as_tensors(one) for one in state]
    return torch.tensor(list(state), dtype=torch.uint8) if isinstance(state, bytes) else state
