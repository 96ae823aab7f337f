"""Migrate: a standby creates its Manager, and joins; the group that it replaces is drained."""

from torchloom_core.wire.operations import Join, Prepare
from torchloom_threadlet.capability import Trainer, TrainerPart


class PreparePart(TrainerPart[Prepare]):
    """Lets a held standby go on from ``attach()`` to its Manager, in which it waits again."""

    operation = Prepare

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether it is a held standby that has not prepared."""
        return bool(trainer.process.is_held and not trainer.process.prepared)

    def refusal(self, operation: Prepare, trainer: Trainer) -> str:
        """Refuse anything else."""
        if trainer.state == "standby" and self.is_offered(trainer):
            return ""
        return "need a standby that waits in attach(held=True)"

    def do(self, operation: Prepare, trainer: Trainer) -> str:
        """Go on."""
        trainer.process.prepared = True
        trainer.process.announce()
        return ""


class JoinPart(TrainerPart[Join]):
    """Lets a standby train."""

    operation = Join

    def is_offered(self, trainer: Trainer) -> bool:
        """Return whether it began as a standby."""
        return bool(trainer.process.identity.standby)

    def is_at_once(self, trainer: Trainer) -> bool:
        """Return whether the training thread may still be creating its Manager."""
        return bool(trainer.process.prepared)

    def refusal(self, operation: Join, trainer: Trainer) -> str:
        """Refuse what is no standby."""
        return (
            "" if trainer.state == "standby" else f"need a standby, the worker is {trainer.state}"
        )

    def do(self, operation: Join, trainer: Trainer) -> str:
        """Join."""
        trainer.process.enter("joining")
        trainer.process.wake()
        return ""


PARTS = (PreparePart(), JoinPart())
