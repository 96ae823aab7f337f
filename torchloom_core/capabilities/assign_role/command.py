"""``torchloom assign-role``."""

from torchloom_core.capabilities.assign_role import AssignRole
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def assign_role(
    group: str, to: str, /, *, wait: Wait = WAIT_S, connection: Connection = HERE
) -> None:
    """Let the nodes of a group run another role.

    The group leaves at a step boundary. Its nodes need ``torchloom node-agent``.

    Parameters
    ----------
    group
        Name of the replica group.
    to
        Role that its nodes run from then on.
    """
    propose(AssignRole(group=group, to=to), wait, connection)
