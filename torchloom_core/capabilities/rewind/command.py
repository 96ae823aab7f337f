"""``torchloom rewind``."""

from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def rewind(*, skip: int = 0, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Return all ranks to the last checkpoint, at the same step.

    Parameters
    ----------
    skip
        Number of batches to skip after the checkpoint.
    """
    propose(RewindRun(skip=skip), wait, connection)
