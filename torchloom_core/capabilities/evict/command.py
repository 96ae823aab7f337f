"""``torchloom evict``."""

from typing import Literal

from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def evict(
    group: str,
    /,
    *,
    then: Literal["wait", "restart", "replace"] = "restart",
    wait: Wait = WAIT_S,
    connection: Connection = HERE,
) -> None:
    """Evict a hung replica group from the quorum.

    Parameters
    ----------
    group
        Name of the hung replica group.
    then
        What follows. wait: the group may rejoin by itself. restart: its processes are ended, and
        their launcher restarts them. replace: they are ended, and a standby takes the place.
    """
    propose(EvictGroup(group=group, then=then), wait, connection)
