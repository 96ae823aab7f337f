"""``torchloom uncordon``."""

from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.cli.capability import HERE, Connection, propose


def uncordon(node: str, /, *, connection: Connection = HERE) -> None:
    """Uncordon a node: torchLoom may use its standbys again.

    Parameters
    ----------
    node
        Name of the node.
    """
    propose(UncordonNode(node=node), 0.0, connection)
