"""Checkpoint: the script's function saves."""

from torchloom_core.wire.operations import Checkpoint
from torchloom_threadlet.capability import Trainer, TrainerPart


class CheckpointPart(TrainerPart[Checkpoint]):
    """Calls the script's function."""

    operation = Checkpoint
    need = "need a function to save: call loom.on_checkpoint(save) in the script"

    def do(self, operation: Checkpoint, trainer: Trainer) -> str:
        """Save, in a named phase."""
        with trainer.phase("checkpoint"):
            for save in trainer.functions:
                save()
        return ""


PARTS = (CheckpointPart(),)
