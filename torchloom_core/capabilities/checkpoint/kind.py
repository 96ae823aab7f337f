"""Checkpoint: workers save at their next step boundary."""

from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.live.capability import ActionKind, Plan, Run, Stages, workers_text
from torchloom_core.wire.operations import Checkpoint


class CheckpointKind(ActionKind[SaveCheckpoint]):
    """Sent to the workers that have registered a save function."""

    message = SaveCheckpoint
    operations = (Checkpoint,)

    def target(self, action: SaveCheckpoint) -> str:
        """Return the one target of all checkpoints."""
        return "checkpoint"

    def obstacle(self, action: SaveCheckpoint, run: Run) -> str:
        """Refuse where no training worker can save."""
        group = action.group
        if group is not None and (problem := run.not_training(group)):
            return problem
        of_group = "" if group is None else f" of {group}"
        need = "has a save function: register one with loom.on_checkpoint"
        return "" if _savers(group, run) else f"no training worker{of_group} {need}"

    def stages(self, action: SaveCheckpoint, run: Run) -> Stages:
        """Return the one stage for all workers that save."""
        return Stages((run.stage(_savers(action.group, run), Checkpoint()),))

    def summary(self, action: SaveCheckpoint, plan: Plan, run: Run) -> str:
        """Return how many workers saved."""
        return f"saved by {workers_text(plan)}"


def _savers(group: str | None, run: Run) -> list[int]:
    rows = run.able(run.rows_in("training"), "checkpoint")
    return [row for row in rows if group in (None, run.fleet.hello[row].group)]


KIND = CheckpointKind()
