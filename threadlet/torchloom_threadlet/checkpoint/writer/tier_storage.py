"""The storage of a tier, and of another node's memory."""

from pathlib import Path

from torchloom_core.checkpoints.storage import Storage, storage_at
from torchloom_threadlet.checkpoint.node_store.address import StoreAddress, start_store
from torchloom_threadlet.checkpoint.node_store.client import StoreClient
from torchloom_threadlet.checkpoint.writer.node_memory import NodeMemory
from torchloom_threadlet.checkpoint.writer.orders import NodeAddress, TierPlace
from torchloom_threadlet.checkpoint.writer.pace import Pace


def storage_of(tier: TierPlace, pace: Pace) -> Storage:
    """Return where a writer stores a tier; CheckpointError if it cannot be."""
    if not tier.in_memory:
        return storage_at(tier.place)
    copy, home = (client_of(node) if node is not None else None for node in (tier.copy, tier.home))
    folder = Path(tier.place)

    def serve() -> StoreAddress:
        return start_store(folder, tier.host, by_trainer=False)

    return NodeMemory(folder, copy, home, pace, serve)


def client_of(node: NodeAddress) -> StoreClient:
    """Return the store of a node's memory."""
    return StoreClient(StoreAddress.parse(node.address), f"the memory of {node.node}")
