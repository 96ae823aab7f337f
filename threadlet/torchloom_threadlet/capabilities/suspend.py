"""Suspend: the trainer waits until it is resumed, and saves its state."""

from torchloom_core.wire.operations import Store, Suspend
from torchloom_threadlet.capability import Trainer, TrainerPart

_SAVES = "need loom.checkpoints(...) or loom.on_checkpoint(save) in the script"
_PARKS = "need loom.checkpoints(..., memory_every_s=...) in the script"


class SuspendPart(TrainerPart[Suspend]):
    """Begins the wait; nothing but a resume ends it."""

    operation = Suspend
    fenced = "only"

    def is_offered(self, trainer: Trainer) -> bool:
        """Return False: that a worker takes part in fenced changes implies it."""
        return False

    def refusal(self, operation: Suspend, trainer: Trainer) -> str:
        """Refuse what could not be done once all ranks wait."""
        if trainer.state == "standby":
            return "the worker is a standby"
        if operation.depth == "stored" and not trainer.process.actuators.functions("checkpoint"):
            return f"it cannot be stored: {_SAVES}"
        if operation.depth == "parked" and not trainer.process.actuators.functions("park"):
            return f"it cannot be parked: {_PARKS}"
        return ""

    def do(self, operation: Suspend, trainer: Trainer) -> str:
        """Begin it."""
        trainer.process.suspend(trainer.cause)
        return ""


class StorePart(TrainerPart[Store]):
    """Saves by what ``loom.checkpoints`` registered, or else by the script's function."""

    operation = Store

    def is_offered(self, trainer: Trainer) -> bool:
        """Return False: that a worker takes part in fenced changes implies it."""
        return False

    def refusal(self, operation: Store, trainer: Trainer) -> str:
        """Refuse it where not all ranks wait at one step."""
        return "" if trainer.process.lease.is_held else "the worker is not suspended"

    def do(self, operation: Store, trainer: Trainer) -> str:
        """Save, in a named phase, and return once it is stored."""
        process, name = trainer.process, f"{trainer.cause}.store"
        with trainer.phase("checkpoint"):
            if trainer.functions:
                for store in trainer.functions:
                    store(name)
                return ""
            process.meet(name)
            for save in process.actuators.functions("checkpoint"):
                save()
        return ""


PARTS = (SuspendPart(), StorePart())
