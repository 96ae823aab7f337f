"""``torchloom dump``."""

from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.cli.options import Connection, Wait
from torchloom_core.cli.weaver_client import propose

_HERE = Connection()
_WAIT_S = 60.0


def dump(worker: str, /, *, wait: Wait = _WAIT_S, connection: Connection = _HERE) -> None:
    """Collect a worker's stack traces and Flight Recorder dump.

    A worker without a Flight Recorder sends its stack traces only.

    Parameters
    ----------
    worker
        Name of the worker.
    """
    propose(CollectDump(worker=worker), wait, connection)
