"""``torchloom admit``."""

from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def admit(group: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Let a standby group join the run permanently.

    No other group leaves.

    Parameters
    ----------
    group
        Name of the standby replica group.
    """
    propose(AdmitGroup(group=group), wait, connection)
