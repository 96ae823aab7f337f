"""The Threadlet: the agent of one training process.

::

    import torchloom_threadlet

    loom = torchloom_threadlet.attach()
    loom.optimizer(optimizer)
    for batch in batches:
        ...
        if not loom.step(loss=loss):
            break

Where no Weaver's ``join.json`` is named or found the loom is inert, and the script runs as it
would without these lines.
"""

import os

from torchloom_threadlet.early_end import keep_last_words
from torchloom_threadlet.trainer.attachment import attach_once
from torchloom_threadlet.trainer.loom import Loom
from torchloom_threadlet.trainer.standby_tasks import StandbyTaskRunner, standby_tasks_of

__all__ = ["Loom", "attach"]

keep_last_words()


def attach(
    join: str | os.PathLike[str] | None = None,
    *,
    group: str | None = None,
    rank: int | None = None,
    node: str | None = None,
    rack: str | None = None,
    standby: bool | None = None,
    framework: str = "",
    landscape: StandbyTaskRunner | None = None,
    preview: StandbyTaskRunner | None = None,
) -> Loom:
    """Register this process as a worker and return its loom.

    A standby waits in here until it is told to join. One that is dismissed, as all are when the
    run is over, ends its process here, with status 0.

    Where ``join`` or ``TORCHLOOM_JOIN`` names a file that is not there yet, training starts at
    once, and the worker enrols when the Weaver has written it; a standby waits for that, too.
    Where neither is given and there is no ``.torchloom/join.json`` the loom is inert, and a
    standby does not wait.

    Called again with the same arguments, as when a notebook's cell is run again, it returns the
    same loom, until that is closed or drained.

    Parameters
    ----------
    join : path, optional
        The Weaver's ``join.json``; else ``TORCHLOOM_JOIN``, else ``.torchloom/join.json``.
    group, rank, node, rack : optional
        Who this worker is and where it sits; else ``TORCHLOOM_GROUP`` (or
        ``REPLICA_GROUP_ID``), ``TORCHLOOM_RANK`` (or ``RANK``), ``TORCHLOOM_NODE`` (or the
        host's name) and ``TORCHLOOM_RACK``.
    standby : bool, optional
        Whether to stand by; else whether ``TORCHLOOM_ROLE`` is ``standby``.
    framework : str
        What trains, for people to read.
    landscape : torchloom_threadlet.landscape.Landscape, optional
        What a standby can look at the loss around the run's newest weights with, while it waits.
    preview : torchloom_threadlet.preview.Preview, optional
        What a standby can try a change out with, while it waits.

    Raises
    ------
    ConfigError
        If this process is attached already, with other arguments.
    """
    who = {"group": group, "rank": rank, "node": node, "rack": rack, "standby": standby}
    return attach_once(
        Loom, join, who, framework, standby_tasks=standby_tasks_of(landscape, preview)
    )
