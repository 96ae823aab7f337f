"""Flush in a trainer: the script's function waits for its writes."""

import time

from torchloom_threadlet.capability import Trainer, TrainerPart

from torchloom_flush import Flush


class FlushPart(TrainerPart[Flush]):
    """Calls what the script gave to ``loom.on("flush", function)``, between two steps."""

    operation = Flush
    need = 'need a function to flush: call loom.on("flush", function) in the script'

    def do(self, operation: Flush, trainer: Trainer) -> str:
        """Wait, and return for how long."""
        began_s = time.monotonic()
        with trainer.phase("flush"):
            for wait in trainer.functions:
                wait()
        return f"on disk after {time.monotonic() - began_s:.1f} s"


PARTS = (FlushPart(),)
