"""Suspend: the trainer waits until it is resumed, and saves its state."""

from torchloom_core.wire.operations import Load, Park, Store, Suspend
from torchloom_threadlet.capability import Trainer, TrainerPart
from torchloom_threadlet.cleaning import error_line

_SAVES = "need loom.checkpoints(...) or loom.on_checkpoint(save) in the script"
_PARKS = "need loom.checkpoints(..., memory_every_s=...) in the script, without torchft"


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
        if operation.depth == "frozen" and (why := trainer.process.cannot_freeze):
            return f"it cannot be frozen: {why}"
        if operation.depth == "stored" and not trainer.process.actuators.functions("checkpoint"):
            return f"it cannot be stored: {_SAVES}"
        if operation.depth == "parked" and trainer.process.parking is None:
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


class ParkPart(TrainerPart[Park]):
    """Leaves the state in the memory of nodes; then the script's functions free what they have."""

    operation = Park

    def is_offered(self, trainer: Trainer) -> bool:
        """Return False: a suspended worker that cannot do it has refused to be suspended."""
        return False

    def refusal(self, operation: Park, trainer: Trainer) -> str:
        """Refuse it where not all ranks wait at one step."""
        if trainer.process.parking is None:
            return f"it cannot be parked: {_PARKS}"
        return "" if trainer.process.lease.is_held else "the worker is not suspended"

    def do(self, operation: Park, trainer: Trainer) -> str:
        """Park, in a named phase."""
        with trainer.phase("checkpoint"):
            done = trainer.process.parking.park(f"{trainer.cause}.park")
        trainer.process.announce()
        _call(trainer, "park")
        return str(done)


class LoadPart(TrainerPart[Load]):
    """Loads the state again; then the script's functions make again what they had freed."""

    operation = Load

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether the state is not loaded."""
        return bool(trainer.process.is_parked)

    def do(self, operation: Load, trainer: Trainer) -> str:
        """Load, in a named phase."""
        if trainer.process.is_parked:
            with trainer.phase("restore"):
                trainer.process.parking.load(f"{trainer.cause}.load")
            trainer.process.announce()
            _call(trainer, "load")
        return ""


def _call(trainer: Trainer, verb: str) -> None:
    """Call the script's functions; one that fails is logged, as the ranks have done their part."""
    for function in trainer.functions:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - the user's function
            trainer.log(f"loom.on({verb!r}): {error_line(error)}")


PARTS = (SuspendPart(), StorePart(), ParkPart(), LoadPart())
