"""Drain: the worker leaves the quorum, and its training loop ends."""

from torchloom_core.wire.operations import Drain
from torchloom_threadlet.capability import Trainer, TrainerPart


class DrainPart(TrainerPart[Drain]):
    """Calls the functions that leave, the adapter's first."""

    operation = Drain
    fenced = "possible"

    def refusal(self, operation: Drain, trainer: Trainer) -> str:
        """Refuse a rank alone where all ranks leave together; in a pause all are at one step."""
        process = trainer.process
        if process.leaves_together and trainer.command and trainer.state != "paused":
            return f"{process.framework} drains all ranks at one step: not a rank alone"
        return super().refusal(operation, trainer)

    def do(self, operation: Drain, trainer: Trainer) -> str:
        """Leave; a worker that cannot leave trains on."""
        process, before = trainer.process, trainer.state
        if before == "paused":  # a rank whose pause has ended does not come
            process.meet(trainer.cause)
        process.enter("draining")
        try:
            for leave in trainer.functions:
                leave()
        except Exception:
            process.enter(before)
            raise
        process.going = False
        process.enter("left")
        return ""


PARTS = (DrainPart(),)
