"""NVRx: ``follow(client, loom)`` reads the heartbeats and sections of a rank."""

from torchloom_threadlet.adapters.framework import require

require("nvrx", "0.4", "nvidia-resiliency-ext")

from torchloom_threadlet.adapters.nvrx.following import follow  # noqa: E402

__all__ = ["follow"]
