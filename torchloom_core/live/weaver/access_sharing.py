"""Share who has access between the hosts whose embedded brokers form a cluster.

Each server has a list of its own of what is revoked. The Weaver of each host, leader or standby,
merges its list with that in the run's bucket, and both with each other's.
"""

import asyncio
import logging

import msgspec

from torchloom_core.floor.errors import BrokerError, StateError
from torchloom_core.live.transport.broker import EmbeddedBroker
from torchloom_core.live.transport.security.register import Shared
from torchloom_core.live.transport.state_bucket import StateBucket
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_KEY = "access"
_EVERY_S = 1.0


async def share_access(state: StateBucket, broker: EmbeddedBroker) -> None:
    """Merge the lists every second. Runs until cancelled."""
    while True:
        try:
            await merge_access(state, broker)
        except (BrokerError, StateError) as error:
            _log.warning("who has access is not shared with the other hosts: %s", error)
        await asyncio.sleep(_EVERY_S)


async def merge_access(state: StateBucket, broker: EmbeddedBroker) -> None:
    """Merge this host's list and the bucket's; or BrokerError, StateError."""
    register = broker.credentials.register
    stored = _decoded(await state.get(_KEY))
    if register.merge(stored):
        await asyncio.to_thread(broker.reload)
    own = register.shared()
    if own != stored:  # a write of another host that is lost here is repeated by that host
        await state.put(_KEY, msgspec.json.encode(own))


def _decoded(data: bytes | None) -> Shared:
    try:
        return msgspec.json.decode(data, type=Shared) if data else Shared()
    except UNREADABLE:
        return Shared()
