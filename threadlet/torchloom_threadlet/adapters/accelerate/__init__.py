"""Hugging Face accelerate: ``loom = attach(accelerator)`` in a script with its own loop."""

from torchloom_threadlet.adapters.framework import require

require("accelerate", "1.13", "accelerate")

from torchloom_threadlet.adapters.accelerate.attaching import attach, resume  # noqa: E402

__all__ = ["attach", "resume"]
