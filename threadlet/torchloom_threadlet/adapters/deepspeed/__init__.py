"""DeepSpeed: ``loom = attach(engine)`` after ``deepspeed.initialize``."""

from torchloom_threadlet.adapters.framework import require

require("deepspeed", "0.19.8", "deepspeed")

from torchloom_threadlet.adapters.deepspeed.attaching import attach, resume  # noqa: E402

__all__ = ["attach", "resume"]
