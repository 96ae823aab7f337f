"""``torchloom resume``."""

from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def resume(*, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Resume training after a pause.

    To release the kill switch, use torchloom actions resume.
    """
    propose(ResumeRun(), wait, connection)
