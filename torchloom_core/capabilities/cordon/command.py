"""``torchloom cordon``."""

from typing import Annotated

from cyclopts import Parameter

from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.cli.capability import HERE, Connection, Duration, propose


def cordon(
    node: str,
    /,
    *,
    lasts: Annotated[Duration | None, Parameter(name="--for")] = None,
    reason: str = "",
    connection: Connection = HERE,
) -> None:
    """Cordon a node: torchLoom uses no standby on it.

    Workers there keep training. If a node is cordoned twice, the longer cordon applies.

    Parameters
    ----------
    node
        Name of the node.
    lasts
        Duration, such as 2d or 1h30m. Default: until torchloom uncordon.
    reason
        Why, for the record.
    """
    lasts_s = None if lasts is None else lasts.total_seconds()
    propose(CordonNode(node=node, lasts_s=lasts_s, reason=reason), 0.0, connection)
