"""``torchloom rewind``."""

from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Role, Wait, propose


def rewind(
    *, skip: int = 0, role: Role = "", wait: Wait = WAIT_S, connection: Connection = HERE
) -> None:
    """Return all ranks to the last checkpoint, at the same step.

    Parameters
    ----------
    skip
        Number of batches to skip after the checkpoint.
    """
    propose(RewindRun(skip=skip, role=role), wait, connection)
