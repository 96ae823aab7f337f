"""Dump: what the trainer waits for, its stacks, and the Flight Recorder's dump."""

import time

from torchloom_core.wire.operations import Dump
from torchloom_threadlet.capability import Trainer, TrainerPart
from torchloom_threadlet.flight_recorder import collectives, flight_recorder
from torchloom_threadlet.ipc import Flight
from torchloom_threadlet.stacks import own_stacks


class DumpPart(TrainerPart[Dump]):
    """Sends a note, though the training thread may be blocked."""

    operation = Dump
    at_once = True

    def do(self, operation: Dump, trainer: Trainer) -> str:
        """Send what was collected."""
        phase = trainer.process.phases.present()
        flight = Flight(text=flight_recorder(), collectives=collectives())
        trainer.note(
            "dump",
            {
                **(phase.fields(time.monotonic_ns()) if phase else {}),
                **flight.fields(),
                "stacks": own_stacks(),
                "flight_recorder": flight.text,
            },
        )
        return ""


PARTS = (DumpPart(),)
