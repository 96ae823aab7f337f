"""The Weaver daemon: one loop that feeds the kernel from NATS and sends what it decides."""

from torchloom_core.weaver.daemon import Weaver
from torchloom_core.weaver.startup import run

__all__ = ["Weaver", "run"]
