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
from torchloom_core.live.kernel.actions.run import of_role
from torchloom_core.wire.operations import SAVES_TOGETHER, Checkpoint


class CheckpointKind(ActionKind[SaveCheckpoint]):
    """Sent to the workers that have registered a save function.

    Those of a framework that saves on all ranks together save at one step, or not at all.
    """

    message = SaveCheckpoint
    operations = (Checkpoint,)

    def target(self, action: SaveCheckpoint) -> str:
        """Return the one target of all checkpoints of a role."""
        return of_role("checkpoint", action.role or "")

    def obstacle(self, action: SaveCheckpoint, run: Run) -> str:
        """Refuse where no training worker can save."""
        group = action.group
        role = action.role or ""
        if group is not None and (problem := run.not_training(group)):
            return problem
        if role and (problem := run.no_role(role)):
            return problem
        of_group = (f" of role {role}" if role else "") if group is None else f" of {group}"
        need = "has a save function: register one with loom.on_checkpoint"
        roles = {role} if role else run.roles_of(_groups(group))
        if not _savers(action, run):
            return run.suspensions.refusal(roles) or f"no training worker{of_group} {need}"
        if run.pauses.paused(roles) or not _save_together(action, run):
            return ""
        return cannot_agree("a checkpoint of this framework", run, roles)

    def stages(self, action: SaveCheckpoint, run: Run) -> Stages:
        """Return the one stage for all workers that save; paused ones are at one step anyway."""
        groups, role = _groups(action.group), action.role or ""
        paused = run.pauses.paused({role} if role else run.roles_of(groups))
        if _save_together(action, run) and not paused:
            return fenced_stages(Checkpoint(), run, groups, role)
        return Stages((run.stage(_savers(action, run), Checkpoint()),))

    def summary(self, action: SaveCheckpoint, plan: Plan, run: Run) -> str:
        """Return how many workers saved, and those that save together at which step."""
        at_step = landed_text(plan) if _save_together(action, run) else ""
        return f"saved by {workers_text(plan)}{at_step}"


def _savers(action: SaveCheckpoint, run: Run) -> list[int]:
    paused = run.able(run.rows_in("paused"), SAVES_TOGETHER)  # all at one step
    rows = run.able([*run.rows_in("training"), *paused], "checkpoint")
    of_group = [row for row in rows if action.group in (None, run.fleet.hello[row].group)]
    return run.with_role(of_group, action.role or "")


def _save_together(action: SaveCheckpoint, run: Run) -> bool:
    return bool(run.able(_savers(action, run), SAVES_TOGETHER))


def _groups(group: str | None) -> tuple[str, ...]:
    return () if group is None else (group,)


KIND = CheckpointKind()
