"""``torchloom drain``."""

from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def drain(group: str, /, *also: str, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Drain replica groups without a replacement.

    They leave at a step boundary.

    Parameters
    ----------
    group
        Name of the replica group.
    also
        More replica groups, which leave at the same step.
    """
    propose(DrainGroup(group=group, also=also), wait, connection)
