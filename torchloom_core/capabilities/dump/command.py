"""``torchloom dump``."""

from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose


def dump(worker: str, /, *, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Collect a worker's stack traces and Flight Recorder dump.

    A worker without a Flight Recorder sends its stack traces only.

    Parameters
    ----------
    worker
        Name of the worker.
    """
    propose(CollectDump(worker=worker), wait, connection)
