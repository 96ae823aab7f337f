"""``torchloom drain``."""

from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def drain(group: str, /, *also: str, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
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
