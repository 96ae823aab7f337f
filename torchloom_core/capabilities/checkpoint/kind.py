"""Checkpoint: workers save at their next step boundary."""

from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.live.capability import (
    ActionKind,
    Plan,
    Run,
    Stages,
    cannot_agree,
    fenced_stages,
    landed_text,
    workers_text,
)
from torchloom_core.wire.operations import Checkpoint


class CheckpointKind(ActionKind[SaveCheckpoint]):
    """Sent to the workers that have registered a save function.

    They save at one step if all ranks can and agree on it: many frameworks save together.
    """

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
        rows = _savers(action.group, run)
        groups = () if action.group is None else (action.group,)
        ranks = [row for row in run.in_training() if action.group in (None, _group(row, run))]
        if len(rows) > 1 and rows == ranks and not cannot_agree("", run, run.roles_of(groups)):
            return fenced_stages(Checkpoint(), run, groups)
        return Stages((run.stage(rows, Checkpoint()),))

    def summary(self, action: SaveCheckpoint, plan: Plan, run: Run) -> str:
        """Return how many workers saved."""
        return f"saved by {workers_text(plan)}{landed_text(plan)}"


def _savers(group: str | None, run: Run) -> list[int]:
    rows = run.able(run.in_training(), "checkpoint")
    return [row for row in rows if group in (None, _group(row, run))]


def _group(row: int, run: Run) -> str:
    return run.fleet.hello[row].group


KIND = CheckpointKind()
