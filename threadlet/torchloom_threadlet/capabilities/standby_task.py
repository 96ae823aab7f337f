"""Standby tasks: a standby works alone while it waits, until another command arrives."""

from typing import Any, ClassVar

import msgspec

from torchloom_core.wire.operations import Rehearse, StandbyTask, Survey
from torchloom_threadlet.capability import Trainer, TrainerPart


class StandbyTaskPart(TrainerPart[StandbyTask]):
    """Runs the task by what the script passed to ``attach()``."""

    operation: ClassVar[type[StandbyTask]]

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether it is a standby's, and the script offers the task."""
        return trainer.process.identity.standby and bool(trainer.functions)

    def refusal(self, operation: StandbyTask, trainer: Trainer) -> str:
        """Refuse what the script does not offer, or cannot do now."""
        if operation.ends_task:
            return ""
        if trainer.state != "standby":
            return f"need a standby, the worker is {trainer.state}"
        if not trainer.functions:
            note = operation.note
            return f"the script offers no {note}: pass {note}= to attach()"
        return self._runner(trainer).refusal(operation) or ""

    def do(self, operation: StandbyTask, trainer: Trainer) -> str:
        """Run the task, and send its results part by part."""
        if operation.ends_task:
            return ""

        def send_piece(points: int, of: int, piece: msgspec.Struct) -> None:
            details = {"command": trainer.command, "points": points, "of": of}
            text = msgspec.json.encode(piece).decode()
            trainer.note(operation.note, {**details, "piece": text})

        seconds = min(operation.seconds, trainer.left_s)
        process = trainer.process
        return str(
            self._runner(trainer).run(
                operation, trainer.worker, seconds, send_piece, process.has_waiting_command
            )
        )

    def _runner(self, trainer: Trainer) -> Any:
        return trainer.functions[-1]


class SurveyPart(StandbyTaskPart):
    """Maps the loss landscape."""

    operation = Survey


class RehearsePart(StandbyTaskPart):
    """Tries a change of knobs."""

    operation = Rehearse


LANDSCAPE = (SurveyPart(),)
PREVIEW = (RehearsePart(),)
