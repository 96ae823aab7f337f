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
from typing import Unpack

from torchloom_threadlet.adapters.torchrun.adapter import TorchrunAdapter
from torchloom_threadlet.attachment import attach_once
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom

__all__ = ["attach"]


def attach(
    join: str | os.PathLike[str] | None = None, **placement: Unpack[PlacementArguments]
) -> Loom:
    """Register this process as a worker; see :func:`torchloom_threadlet.attach`.

    There are no standbys, and a rank that is restarted on a cordoned node is not dismissed: the
    other ranks would wait for it.
    """
    return attach_once(TorchrunAdapter(), join, {**placement, "standby": False})
