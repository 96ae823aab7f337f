"""``torchloom resume``."""

from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Role, Wait, propose


def resume(*, role: Role = "", wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Resume training after a pause.

    To release the kill switch, use torchloom actions resume.
    """
    propose(ResumeRun(role=role), wait, connection)
