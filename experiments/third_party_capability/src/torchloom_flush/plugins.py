"""The plugins of the package; torchloom.toml names those that are active."""

from torchloom_core.plugin import Registry, hookimpl

from torchloom_flush.effector import FlushMarker
from torchloom_flush.policy import FlushWatch


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer policy and effector."""
    registry.policy(FlushWatch)
    registry.effector(FlushMarker)
