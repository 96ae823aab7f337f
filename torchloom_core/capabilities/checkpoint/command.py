"""``torchloom checkpoint``."""

from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def checkpoint(
    group: str | None = None, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE
) -> None:
    """Save a checkpoint now, in one replica group or in all.

    Workers save at their next step boundary.

    Parameters
    ----------
    group
        Replica group that saves. Default: all groups.
    """
    propose(SaveCheckpoint(group=group), wait, connection)
