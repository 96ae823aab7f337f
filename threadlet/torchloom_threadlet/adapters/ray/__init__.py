"""Ray Train and Ray Tune: ``loom = attach()`` in a worker, and the scheduler ``TorchLoomPBT``."""

from torchloom_threadlet.adapters.framework import require

require("ray", "2.60", "ray")

from torchloom_threadlet.adapters.ray.attaching import attach  # noqa: E402
from torchloom_threadlet.adapters.ray.member import Member  # noqa: E402
from torchloom_threadlet.adapters.ray.pbt import TorchLoomPBT  # noqa: E402

__all__ = ["Member", "TorchLoomPBT", "attach"]
