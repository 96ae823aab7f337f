"""The nats-server that the Weaver starts when no URL is given."""

from torchloom_core.live.transport.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
