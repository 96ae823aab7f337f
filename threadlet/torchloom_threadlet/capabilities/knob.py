"""Knob, knobs: set a worker-fenced knob of one worker, or run-fenced ones on all ranks."""

from torchloom_core.floor.errors import KnobError
from torchloom_core.wire.commands import RECONCILE
from torchloom_core.wire.knobs import check_value, find_spec
from torchloom_core.wire.operations import SetKnob, SetKnobs
from torchloom_threadlet.capability import Trainer, TrainerPart


class SetKnobPart(TrainerPart[SetKnob]):
    """Calls the knob's function."""

    operation = SetKnob

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether there are knobs."""
        return bool(trainer.process.actuators.specs)

    def refusal(self, operation: SetKnob, trainer: Trainer) -> str:
        """Refuse an unknown knob, an invalid value, or a knob of all ranks."""
        try:
            spec = find_spec(operation.knob, trainer.process.actuators.specs)
            check_value(spec, operation.value)
        except KnobError as error:
            return str(error)
        if spec.fence == "run":
            return f"knob {spec.name} is run-fenced: it cannot be changed on one worker alone"
        return ""

    def do(self, operation: SetKnob, trainer: Trainer) -> str:
        """Set it; log a value that is restored, since nobody has asked for it now."""
        trainer.process.actuators.set_knob(operation.knob, operation.value)
        if trainer.cause == RECONCILE:
            now = trainer.knobs.get(operation.knob, operation.value)
            trainer.log(f"{operation.knob} is restored to its desired value {now!r}")
        trainer.process.announce()
        return ""


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


KNOB = (SetKnobPart(),)
KNOBS = (SetKnobsPart(),)
