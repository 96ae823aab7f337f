"""``torchloom checkpoint``."""

from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def checkpoint(
    group: str | None = None, /, *, wait: Wait = WAIT_S, connection: Connection = HERE
) -> None:
    """Save a checkpoint now, in one replica group or in all.

    Workers save at their next step boundary.

    Parameters
    ----------
    group
        Replica group that saves. Default: all groups.
    """
    propose(SaveCheckpoint(group=group), wait, connection)
