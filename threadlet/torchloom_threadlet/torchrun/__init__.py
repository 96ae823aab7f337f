"""The adapter for DDP and FSDP under plain torchrun, without torchft.

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

from torchloom_threadlet.torchrun.adapter import TorchrunLoom, attach

__all__ = ["TorchrunLoom", "attach"]
