"""``torchloom migrate``."""

from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def migrate(group: str, /, *, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Add a warm standby to the quorum, then drain a replica group.

    Parameters
    ----------
    group
        Name of the replica group.
    """
    propose(Migrate(group=group), wait, connection)
