"""The nats-server that the Weaver starts when no URL is given."""

from torchloom_core.live.transport.broker.embedded import EmbeddedBroker
from torchloom_core.live.transport.broker.own_server import OwnServer

__all__ = ["EmbeddedBroker", "OwnServer"]
