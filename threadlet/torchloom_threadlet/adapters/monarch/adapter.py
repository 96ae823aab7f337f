"""The adapter for Monarch, whose actors train in a thread of their process."""

from typing import Any

from torchloom_threadlet.adapters.framework import FrameworkAdapter


class MonarchAdapter(FrameworkAdapter):
    """Votes at each ``loom.step``; a drain saves by the script's own function first.

    Parameters
    ----------
    alone : bool
        Whether the actor trains by itself, and is the only rank that votes.
    """

    framework = "monarch"

    def __init__(self, *, alone: bool = False) -> None:
        self._is_alone = alone

    def leave(self) -> None:
        """Save on all ranks, if the script offers a function; then its loop ends."""
        for save in self.worker.actuators.functions("checkpoint"):
            self.together(save, lambda: None)

    def _begin_votes(self, process_group: Any) -> None:
        if self._is_alone:
            self._vote_alone()
        else:
            super()._begin_votes(process_group)
