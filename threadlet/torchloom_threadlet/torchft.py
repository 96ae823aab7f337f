"""For scripts with torchft: three lines more.

::

    from torchloom_threadlet.torchft import attach

    loom = attach(held=True)                  # before the Manager: a standby waits in here
    manager = Manager(..., replica_id=loom.group)
    loom.manage(manager, optimizer)           # or in here, after the command to prepare
    while manager.current_step() < steps:
        ...
        if not loom.step(loss=loss):
            break
"""

import os
from typing import Unpack

from torchloom_threadlet.adapters.torchft.adapter import TorchftAdapter
from torchloom_threadlet.attachment import attach_once
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.trainer.standby_tasks import StandbyTaskRunner, standby_tasks_of

__all__ = ["attach"]


def attach(
    join: str | os.PathLike[str] | None = None,
    *,
    held: bool = False,
    landscape: StandbyTaskRunner | None = None,
    preview: StandbyTaskRunner | None = None,
    **placement: Unpack[PlacementArguments],
) -> Loom:
    """Register this process as a worker; see :func:`torchloom_threadlet.attach`.

    Call it after the model is built and before the Manager is made, since making the Manager
    joins the quorum.

    ``held`` promises that the Manager's ``replica_id`` will be ``loom.group``. By this name
    torchLoom's lighthouse can keep a standby out of the quorum, so that the standby can wait in
    ``loom.manage`` instead.
    """
    tasks = standby_tasks_of(landscape, preview)
    return attach_once(TorchftAdapter(), join, placement, held=held, standby_tasks=tasks)
