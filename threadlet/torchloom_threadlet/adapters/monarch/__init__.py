"""Monarch: ``loom = attach()`` in an actor, and ``survive_faults()`` in its controller."""

from torchloom_threadlet.adapters.framework import require

require("monarch", "0.7", "torchmonarch")

from torchloom_threadlet.adapters.monarch.attaching import attach, training  # noqa: E402
from torchloom_threadlet.adapters.monarch.supervision import survive_faults  # noqa: E402

__all__ = ["attach", "survive_faults", "training"]
