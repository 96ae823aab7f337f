"""The Weaver's side of NATS, and the command line's."""

from torchloom_core.bus.control import ControlClient
from torchloom_core.bus.nats_bus import NatsBus

__all__ = ["ControlClient", "NatsBus"]
