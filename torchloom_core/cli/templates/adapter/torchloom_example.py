"""A torchLoom adapter; a script uses it by ``attach(adapter=ExampleAdapter())``."""

from collections.abc import Mapping
from typing import Any

from torchloom_threadlet.adapters import Adapter


class ExampleAdapter(Adapter):
    """See Adapter for what else a framework can do: agree on a step, leave, save."""

    framework = "example"

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Return the number of the step that is over, and the framework's metrics."""
        return step, {"participants": 1}
