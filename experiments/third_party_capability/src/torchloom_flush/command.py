"""``torchloom flush``."""

from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose

from torchloom_flush import FlushCheckpoints


def flush(
    group: str | None = None, /, *, wait: Wait = WAIT_S, connection: Connection = HERE
) -> None:
    """Wait until the checkpoints of the run are on disk.

    Parameters
    ----------
    group
        Replica group that waits. Default: all groups.
    """
    propose(FlushCheckpoints(group=group), wait, connection)
