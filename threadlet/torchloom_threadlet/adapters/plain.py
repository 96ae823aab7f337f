"""The adapter of a loop without a framework that torchLoom knows."""

from typing import Any

from torchloom_threadlet.adapters.adapter import Adapter


class PlainAdapter(Adapter):
    """A worker that changes alone."""

    def __init__(self, framework: str = "") -> None:
        self.framework = framework

    def manage(self, *parts: Any) -> None:
        """Register the settings of optimizers, each with its scheduler."""
        self.loom.optimizer(*parts)

    def save(self) -> dict[str, Any]:
        """Return the step and all knobs."""
        return super().save() | {"knobs": self.worker.actuators.values}
