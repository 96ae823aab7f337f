"""The random states after ``accelerator.load_state``, which a data loader changes once more."""

from typing import Any

from torchloom_threadlet.checkpoint.state import random_states, set_random_states


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
