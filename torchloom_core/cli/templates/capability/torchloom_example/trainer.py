"""The part in the training process; its script calls ``loom.on("example", function)``."""

from torchloom_threadlet.capability import Trainer, TrainerPart

from . import Example


class ExamplePart(TrainerPart[Example]):
    """Calls the script's functions between two steps."""

    operation = Example
    need = 'need a function: call loom.on("example", function) in the script'

    def do(self, operation: Example, trainer: Trainer) -> str:
        """Do it, and return a detail for the record."""
        for function in trainer.functions:
            function()
        return f"done at step {trainer.step}"


PARTS = (ExamplePart(),)
