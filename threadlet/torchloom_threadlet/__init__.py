"""The Threadlet: the agent of one training process.

::

    import torchloom_threadlet

    loom = torchloom_threadlet.attach()
    loom.optimizer(optimizer)
    for batch in batches:
        ...
        if not loom.step(loss=loss):
            break

Without a Weaver's ``join.json`` the loom is inert: the script runs as it would without these
lines.
"""

import os
from typing import Unpack

from torchloom_threadlet.adapter import Adapter, PlainAdapter
from torchloom_threadlet.attachment import attach_once
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.launch import record_final_error
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.trainer.standby_tasks import StandbyTaskRunner, standby_tasks_of

__all__ = ["Loom", "attach"]

record_final_error()


def attach(
    join: str | os.PathLike[str] | None = None,
    *,
    framework: str = "",
    adapter: Adapter | None = None,
    landscape: StandbyTaskRunner | None = None,
    preview: StandbyTaskRunner | None = None,
    **placement: Unpack[PlacementArguments],
) -> Loom:
    """Register this process as a worker and return its loom.

    A standby waits in this call until the Weaver lets it join. A standby that is dismissed, as all
    are when the run ends, exits here with status 0.

    If the file that ``join`` or ``TORCHLOOM_JOIN`` names does not exist yet, training starts at
    once, and the worker enrols when the Weaver has written it; a standby waits for it.
    If neither is set and there is no ``.torchloom/join.json``, the loom is inert and a standby
    does not wait.

    A second call with the same arguments, as from a notebook cell that runs again, returns the
    same loom, until that is closed or drained.

    Parameters
    ----------
    join : path, optional
        The Weaver's ``join.json``; else ``TORCHLOOM_JOIN``, else ``.torchloom/join.json``.
    framework : str
        The name of the training framework, for display.
    adapter : torchloom_threadlet.adapter.Adapter, optional
        A training framework that torchLoom does not bring; those that it brings have an
        ``attach`` of their own, in ``torchloom_threadlet.torchft`` and ``.torchrun``.
    landscape : torchloom_threadlet.landscape.Landscape, optional
        Lets a standby compute the loss landscape around the newest weights while it waits.
    preview : torchloom_threadlet.preview.Preview, optional
        Lets a standby try a knob change while it waits.
    **placement
        The worker's role, group, rank, stage, shard, node and rack, and whether it is a standby:
        see :class:`~torchloom_threadlet.identity.PlacementArguments`. What is not given comes from
        the environment: ``TORCHLOOM_GROUP`` (or ``REPLICA_GROUP_ID``), ``TORCHLOOM_RANK`` (or
        ``RANK``), ``TORCHLOOM_NODE`` (or the host's name) and so on.

    Raises
    ------
    ConfigError
        If this process is already attached with other arguments.
    """
    tasks = standby_tasks_of(landscape, preview)
    return attach_once(adapter or PlainAdapter(framework), join, placement, standby_tasks=tasks)
