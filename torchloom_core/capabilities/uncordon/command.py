"""``torchloom uncordon``."""

from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.cli.options import Connection
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()


def uncordon(node: str, /, *, connection: Connection = _HERE) -> None:
    """Uncordon a node: torchLoom may use its standbys again.

    Parameters
    ----------
    node
        Name of the node.
    """
    propose(UncordonNode(node=node), 0.0, connection)
