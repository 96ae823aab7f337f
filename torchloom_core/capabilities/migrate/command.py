"""``torchloom migrate``."""

from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def migrate(group: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Add a warm standby to the quorum, then drain a replica group.

    Parameters
    ----------
    group
        Name of the replica group.
    """
    propose(Migrate(group=group), wait, connection)
