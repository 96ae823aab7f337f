"""``torchloom annotate-node``."""

from torchloom_core.capabilities.annotate_node import AnnotateNode
from torchloom_core.cli.capability import HERE, Connection, propose


def annotate_node(node: str, text: str, /, *, connection: Connection = HERE) -> None:
    """Attach a text to a node in the run's record.

    Parameters
    ----------
    node
        Name of the node.
    text
        Text of the annotation.
    """
    propose(AnnotateNode(node=node, text=text), 0.0, connection)
