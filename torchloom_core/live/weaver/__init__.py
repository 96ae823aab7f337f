"""The Weaver daemon: one loop that feeds the kernel from NATS and sends what it decides."""

from torchloom_core.live.weaver.daemon import Weaver
from torchloom_core.live.weaver.startup import run

__all__ = ["Weaver", "run"]
