"""What a checkpoint holds of torchft: the Manager's step, and the outer state of DiLoCo."""

from collections.abc import Mapping
from typing import Any

_OTHERS = ("default", "torchloom")
"""The script's own state, whose parts are saved by themselves, and the loom's."""


class ManagerState:
    """A Manager's own state, and what others have registered with it.

    DiLoCo registers each fragment: the weights of the last sync, and its outer optimizer.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the registered states by name."""
        registered = self._manager._user_state_dicts
        return {
            "manager": self._manager.state_dict(),
            "registered": {key: of() for key, of in registered.items() if key not in _OTHERS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the step, and the states of what is registered by now."""
        self._manager.load_state_dict(state["manager"])
        for key, load in self._manager._load_state_dict_fns.items():
            if key in state["registered"]:
                load(state["registered"][key])


def is_manager(part: Any) -> bool:
    """Return whether a part is torchft's Manager."""
    return hasattr(part, "current_step") and hasattr(part, "participating_rank")
