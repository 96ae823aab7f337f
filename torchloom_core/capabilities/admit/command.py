"""``torchloom admit``."""

from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def admit(group: str, /, *, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Let a standby group join the run permanently.

    No other group leaves.

    Parameters
    ----------
    group
        Name of the standby replica group.
    """
    propose(AdmitGroup(group=group), wait, connection)
