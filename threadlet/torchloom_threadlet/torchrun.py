"""For DDP and FSDP under plain torchrun, without torchft.

::

    from torchloom_threadlet.torchrun import attach

    dist.init_process_group()
    loom = attach()
    loom.manage(optimizer)
    for batch in batches:
        ...
        if not loom.step(loss=loss):
            break
    loom.close()
"""

import os

from torchloom_threadlet.adapters.torchrun.adapter import TorchrunAdapter
from torchloom_threadlet.attachment import attach_once
from torchloom_threadlet.loom import Loom

__all__ = ["attach"]


def attach(
    join: str | os.PathLike[str] | None = None,
    *,
    group: str | None = None,
    rank: int | None = None,
    node: str | None = None,
    rack: str | None = None,
) -> Loom:
    """Register this process as a worker; see :func:`torchloom_threadlet.attach`.

    There are no standbys, and a rank that is restarted on a cordoned node is not dismissed: the
    other ranks would wait for it.
    """
    placement = {"group": group, "rank": rank, "node": node, "rack": rack, "standby": False}
    return attach_once(TorchrunAdapter(), join, placement)
