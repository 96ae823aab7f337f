"""Assign a role: a node's agent starts the program of another role."""

from torchloom_core.wire.operations import StartRole
from torchloom_threadlet.capability import Trainer, TrainerPart


class StartRolePart(TrainerPart[StartRole]):
    """Calls the agent, also while the run is paused."""

    operation = StartRole
    need = "only the agent of a node starts programs: need torchloom node-agent"
    at_once = True

    def do(self, operation: StartRole, trainer: Trainer) -> str:
        """Have the other program started once the present one has ended."""
        for start in trainer.functions:
            start(operation.role)
        return f"starts role {operation.role}"


PARTS = (StartRolePart(),)
