"""The command line."""

from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Wait, propose

from . import RequestExample


def example(worker: str, /, *, wait: Wait = WAIT_S, connection: Connection = HERE) -> None:
    """Let a worker do the operation of its script.

    Parameters
    ----------
    worker
        Name of the worker.
    """
    propose(RequestExample(worker=worker), wait, connection)
