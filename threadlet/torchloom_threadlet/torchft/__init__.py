"""The adapter for torchft: three lines in a script that already uses it.

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

from torchloom_threadlet.torchft.adapter import TorchftLoom, attach

__all__ = ["TorchftLoom", "attach"]
