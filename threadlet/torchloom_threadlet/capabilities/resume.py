"""Resume: a paused worker trains on."""

from torchloom_core.wire.operations import Resume
from torchloom_threadlet.capability import Trainer, TrainerPart


class ResumePart(TrainerPart[Resume]):
    """Ends the pause."""

    operation = Resume

    def refusal(self, operation: Resume, trainer: Trainer) -> str:
        """Refuse a standby."""
        return "the worker is a standby" if trainer.state == "standby" else ""

    def do(self, operation: Resume, trainer: Trainer) -> str:
        """End it, if there is one."""
        if trainer.state == "paused":
            trainer.process.enter("training")
        return ""


PARTS = (ResumePart(),)
