"""Drain: groups leave at a step boundary, without a replacement."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.live.capability import (
    ActionKind,
    Plan,
    Run,
    Stages,
    cannot_agree,
    fenced_stages,
    landed_text,
)
from torchloom_core.wire.operations import Drain


class DrainKind(ActionKind[DrainGroup]):
    """Applies to a standby as well.

    Several training workers leave at one step if all can agree on it.
    """

    message = DrainGroup
    operations = (Drain,)
    high_impact = True
    moves_group = True
    without_replacement = True
    is_alarm = True

    def moves(self, action: DrainGroup) -> frozenset[str]:
        """Return the groups that leave."""
        return frozenset(action.groups)

    def obstacle(self, action: DrainGroup, run: Run) -> str:
        """Refuse a group that neither trains nor is a standby, or is about to join."""
        problems = [_obstacle(group, run) for group in action.groups]
        if action.also and not any(problems):
            if standbys := [g for g in action.groups if run.standby_members(g)]:
                problems = [f"standby {standbys[0]} has to be drained alone"]
            else:
                problems = [
                    cannot_agree("a drain of several groups", run, run.roles_of(action.groups))
                ]
        return next(filter(None, problems), "")

    def stages(self, action: DrainGroup, run: Run) -> Stages:
        """Return the drain of all their workers."""
        rows = [row for group in action.groups for row in run.members(group)]
        if len(rows) > 1 and not cannot_agree("a drain", run, run.roles_of(action.groups)):
            return fenced_stages(Drain(), run, action.groups)
        return Stages((run.stage(rows or run.standby_members(action.group), Drain()),))

    def summary(self, action: DrainGroup, plan: Plan, run: Run) -> str:
        """Return which groups left, and at which step."""
        return f"{', '.join(action.groups)} drained{landed_text(plan)}"

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``drain group g1``, or ``drain group g1, g2``."""
        return f"drain group {', '.join([action['group'], *action.get('also', ())])}"


def _obstacle(group: str, run: Run) -> str:
    standby = run.standby_members(group)
    reserved = run.plans.reserved() if standby else ()
    if any(run.fleet.hello[row].worker in reserved for row in standby):
        return f"standby {group} is about to join"
    if standby:
        return ""
    return run.suspensions.refusal(run.roles_of((group,))) or run.not_training(group)


KIND = DrainKind()
