"""``torchloom suspend``."""

from typing import Annotated

from cyclopts import Parameter

from torchloom_core.capabilities.suspend import SuspendRun
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Role, Wait, propose
from torchloom_core.wire.operations import Depth

_Depth = Annotated[
    Depth,
    Parameter(
        help="frozen: processes are stopped. parked: they wait, with their state in the memory of "
        "nodes. stored: a checkpoint is saved, and they end."
    ),
]


def suspend(
    *, depth: _Depth, role: Role = "", wait: Wait = WAIT_S, connection: Connection = HERE
) -> None:
    """Suspend training at one step, until torchloom resume.

    All workers are suspended, or none. They stay so without a Weaver, too; a new one can resume
    them.
    """
    propose(SuspendRun(depth=depth, role=role), wait, connection)
