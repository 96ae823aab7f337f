"""``torchloom pause``."""

from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Role, Wait, propose


def pause(*, role: Role = "", wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Pause training for a short time, at the next step boundary.

    Under torchft all workers pause at the same step. Elsewhere each pauses at its own next step;
    if the steps differ, the pause is undone within two seconds and can be repeated. Roles whose
    steps take longer than a second are paused one by one, each with --role. The pause
    lasts until torchloom resume, torchloom actions stop or the end of the Weaver, and under
    torchft for at most 0.8 of the Manager's quorum_timeout.
    """
    propose(PauseRun(role=role), wait, connection)
