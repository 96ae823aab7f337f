"""The adapter for Ray, whose workers train in a thread of an actor."""

from torchloom_threadlet.adapters.framework import FrameworkAdapter


class RayAdapter(FrameworkAdapter):
    """Votes at each ``loom.step``; a drain saves by the script's own function first."""

    framework = "ray"

    def leave(self) -> None:
        """Save on all ranks, if the script offers a function; then its loop ends."""
        for save in self.worker.actuators.functions("checkpoint"):
            self.together(save, lambda: None)
