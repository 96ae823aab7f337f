"""Checkpoint: the script's function saves."""

from torchloom_core.wire.operations import Checkpoint
from torchloom_threadlet.capability import Trainer, TrainerPart


class CheckpointPart(TrainerPart[Checkpoint]):
    """Calls the script's function."""

    operation = Checkpoint
    need = "need a function to save: call loom.on_checkpoint(save) in the script"
    fenced = "possible"

    def refusal(self, operation: Checkpoint, trainer: Trainer) -> str:
        """Refuse a rank alone whose framework saves on all ranks; in a pause all are at one step.

        A fenced change has no command of its own.
        """
        process = trainer.process
        if process.saves_together and trainer.command and trainer.state != "paused":
            return f"{process.framework} saves on all ranks at one step: not on a rank alone"
        return super().refusal(operation, trainer)

    def do(self, operation: Checkpoint, trainer: Trainer) -> str:
        """Save, in a named phase."""
        with trainer.phase("checkpoint"):
            if trainer.state == "paused":  # a rank whose pause has ended does not come
                trainer.process.meet(trainer.cause)
            for save in trainer.functions:
                save()
        return ""


PARTS = (CheckpointPart(),)
