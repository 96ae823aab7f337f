"""``torchloom regroup``."""

from torchloom_core.capabilities.regroup import RegroupWorkers
from torchloom_core.cli.capability import HERE, WAIT_S, Connection, Role, Wait, propose
from torchloom_core.cli.options import Several


def regroup(
    *,
    without: Several = (),
    role: Role = "",
    generation: int = 0,
    wait: Wait = WAIT_S,
    connection: Connection = HERE,
) -> None:
    """Change a pipeline's workers to a better assignment, after a step that all commit.

    torchloom plan shows the present one, and what would follow.

    Parameters
    ----------
    without
        Worker that gives up its part and stands by until it is started again, may be repeated.
        Default: none, and those of an earlier request may have a part again.
    generation
        Change only in this generation. Default: the present one.
    """
    propose(
        RegroupWorkers(role=role, without=tuple(without), generation=generation), wait, connection
    )
