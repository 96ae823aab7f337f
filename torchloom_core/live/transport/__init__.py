"""The Weaver's side of NATS, and the command line's."""

from torchloom_core.live.transport.bus import NatsBus
from torchloom_core.live.transport.operator import ControlClient

__all__ = ["ControlClient", "NatsBus"]
