"""Knobs: set run-fenced knobs, on all ranks at one step."""

from torchloom_core.floor.errors import KnobError
from torchloom_core.wire.operations import SetKnobs
from torchloom_threadlet.capability import Trainer, TrainerPart


class SetKnobsPart(TrainerPart[SetKnobs]):
    """Calls the knobs' functions; the fence rolls all ranks back if one cannot set them."""

    operation = SetKnobs
    fenced = "only"
    rolls_back = True

    def is_offered(self, trainer: Trainer) -> bool:
        """Return False: that a worker takes part in fenced changes implies it."""
        return False

    def refusal(self, operation: SetKnobs, trainer: Trainer) -> str:
        """Refuse values that the knobs cannot take together."""
        try:
            trainer.process.actuators.check(operation.values)
        except KnobError as error:
            return str(error)
        return ""

    def do(self, operation: SetKnobs, trainer: Trainer) -> str:
        """Set all or none."""
        trainer.set_knobs(operation.values)
        return ""


PARTS = (SetKnobsPart(),)
