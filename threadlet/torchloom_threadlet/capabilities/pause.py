"""Pause and resume: the training thread waits at a step boundary, on the Weaver's lease."""

from torchloom_core.wire.operations import Pause, Resume
from torchloom_threadlet.capability import Trainer, TrainerPart


class PausePart(TrainerPart[Pause]):
    """Begins the pause; the worker waits in it after its commands."""

    operation = Pause
    fenced = "possible"

    def refusal(self, operation: Pause, trainer: Trainer) -> str:
        """Refuse a standby, and a pause that was cancelled meanwhile."""
        if trainer.process.is_pause_over(trainer.cause):
            return "the pause was cancelled"
        if trainer.process.lease.is_held:
            return "the worker is suspended"
        return "the worker is a standby" if trainer.state == "standby" else ""

    def do(self, operation: Pause, trainer: Trainer) -> str:
        """Begin it; return how long it can last, if the framework limits it."""
        return str(trainer.process.pause(trainer.cause))


class ResumePart(TrainerPart[Resume]):
    """Ends the pause."""

    operation = Resume

    def refusal(self, operation: Resume, trainer: Trainer) -> str:
        """Refuse a standby, and a worker without its state."""
        if trainer.process.is_parked:
            return "its state is not loaded"
        return "the worker is a standby" if trainer.state == "standby" else ""

    def do(self, operation: Resume, trainer: Trainer) -> str:
        """End it, if there is one."""
        trainer.process.resume()
        return ""


PAUSE = (PausePart(),)
RESUME = (ResumePart(),)
