"""Rewind: the script's function restores the last checkpoint, on all ranks at one step."""

from torchloom_core.wire.operations import Rewind
from torchloom_threadlet.capability import Trainer, TrainerPart


class RewindPart(TrainerPart[Rewind]):
    """Calls the script's function."""

    operation = Rewind
    need = "need a function to rewind: call loom.on_rewind(rewind) in the script"
    fenced = "only"
    loses_state = True

    def do(self, operation: Rewind, trainer: Trainer) -> str:
        """Rewind, in a named phase."""
        with trainer.phase("rewind"):
            for rewind in trainer.functions:
                rewind(operation.skip)
        trainer.process.rewinds += 1
        return ""


PARTS = (RewindPart(),)
