"""Drain: a group leaves at a step boundary, without a replacement."""

from torchloom_core.kernel.actions.kind import ActionKind, Stages, group_target
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import DrainGroup
from torchloom_core.wire.messages import Drain
from torchloom_core.wire.plans import Plan


class DrainKind(ActionKind[DrainGroup]):
    """Also of a stand-by, which is sent home so."""

    message = DrainGroup
    deeds = (Drain,)
    high_impact = True
    moves_group = True
    without_replacement = True
    is_alarm = True

    def target(self, action: DrainGroup) -> str:
        """Return the group that leaves."""
        return group_target(action.group)

    def obstacle(self, action: DrainGroup, run: Run) -> str:
        """Refuse to drain who neither trains nor stands by, or is about to join."""
        standby = run.standby_members(action.group)
        reserved = run.reserved() if standby else ()
        if any(run.fleet.hello[row].worker in reserved for row in standby):
            return f"stand-by {action.group} is about to join"
        return "" if standby else run.not_training(action.group)

    def stages(self, action: DrainGroup, run: Run) -> Stages:
        """Return the drain of all of the group."""
        rows = run.members(action.group) or run.standby_members(action.group)
        return Stages((run.stage(rows, Drain()),))

    def summary(self, action: DrainGroup, plan: Plan, run: Run) -> str:
        """Return who went."""
        return f"{action.group} drained"
