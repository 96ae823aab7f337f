"""Evict: the others close their connections to a hung group, whose sidecar ends its process."""

import os
import signal

from torchloom_core.wire.operations import Cut, Terminate
from torchloom_threadlet.capability import Sidecar, SidecarPart, Trainer, TrainerPart


class CutPart(TrainerPart[Cut]):
    """Closes connections through the adapter, though the training thread may be blocked."""

    operation = Cut
    at_once = True

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether an adapter knows the connections."""
        return trainer.process.actuators.connections is not None

    def refusal(self, operation: Cut, trainer: Trainer) -> str:
        """Refuse a quorum whose connections are not known."""
        connections = trainer.process.actuators.connections
        if connections is None:
            return "no framework adapter knows the connections of a quorum"
        return str(connections.refusal(operation.quorum_id))

    def do(self, operation: Cut, trainer: Trainer) -> str:
        """Close them."""
        return str(trainer.process.actuators.connections.cut(operation.quorum_id))


class TerminatePart(SidecarPart[Terminate]):
    """Kills the trainer: a stuck or stopped process cannot end itself."""

    operation = Terminate

    async def finish(self, operation: Terminate, sidecar: Sidecar) -> None:
        """Kill it, after the ack, so that this precedes the report of the end."""
        # Once the trainer has ended its process id may be reused, and we are no child of it.
        if os.getppid() == sidecar.pid:
            os.kill(sidecar.pid, signal.SIGKILL)


PARTS = (CutPart(), TerminatePart())
