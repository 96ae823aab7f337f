"""Freeze and thaw: the sidecar stops its suspended trainer, and lets it go on."""

from torchloom_core.wire.operations import Freeze, Thaw
from torchloom_threadlet.capability import OperationError, Sidecar, SidecarPart


class FreezePart(SidecarPart[Freeze]):
    """Stops the trainer, which waits at a step boundary."""

    operation = Freeze

    def is_offered(self, sidecar: Sidecar) -> bool:
        """Return whether the trainer is not stopped."""
        return sidecar.stopped is None

    async def do(self, operation: Freeze, sidecar: Sidecar) -> str:
        """Stop it, and its children."""
        from torchloom_threadlet.sidecar.stopping import Stopped  # asyncio, not in a trainer

        if sidecar.stopped is None:
            try:
                sidecar.stopped = Stopped(sidecar.pid)
            except OSError as error:
                raise OperationError(f"the trainer cannot be stopped: {error}") from error
            sidecar.announce()
        return f"{len(sidecar.stopped.pids)} processes are stopped"


class ThawPart(SidecarPart[Thaw]):
    """Continues the trainer, which still waits."""

    operation = Thaw

    def is_offered(self, sidecar: Sidecar) -> bool:
        """Return whether this sidecar has stopped the trainer."""
        return sidecar.stopped is not None

    async def do(self, operation: Thaw, sidecar: Sidecar) -> str:
        """Continue it, and wait until it reports again."""
        if sidecar.stopped is not None:
            stopped, sidecar.stopped = sidecar.stopped, None
            await stopped.go_on()
            sidecar.announce()
        return ""


PARTS = (FreezePart(), ThawPart())
