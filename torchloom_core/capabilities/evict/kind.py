"""Evict: remove a hung replica group from the quorum, and end or replace it if requested."""

from collections.abc import Iterable
from typing import cast

from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.capabilities.migrate.kind import standby_for
from torchloom_core.live.capability import ActionKind, Output, Plan, Run, Stage, Stages
from torchloom_core.wire.operations import Cut, Join, Terminate
from torchloom_core.wire.steering import Evict


class EvictKind(ActionKind[EvictGroup]):
    """Cuts the other groups' connections of that quorum; the lighthouse stops waiting."""

    message = EvictGroup
    operations = (Cut, Join, Terminate)
    high_impact = True
    moves_group = True
    is_alarm = True

    def takes(self, action: EvictGroup) -> frozenset[str]:
        """Return the group, unless a standby takes its place."""
        return frozenset() if action.then == "replace" else self.moves(action)

    def obstacle(self, action: EvictGroup, run: Run) -> str:
        """Refuse a group that no other group waits for, or that no standby can replace."""
        role = run.fleet.role_of(action.group)
        others = {one for one in run.training_groups() if run.fleet.role_of(one) == role}
        if others == {action.group}:
            return f"no other group trains, so none waits for {action.group}"
        fits = action.then != "replace" or standby_for(action.group, run)
        if action.then == "wait" and not run.fleet.quorums.replicas(run.members(action.group)):
            return f"{action.group} has not reported its quorum"
        return run.not_training(action.group) or ("" if fits else f"no standby fits {action.group}")

    def stages(self, action: EvictGroup, run: Run) -> Stages:
        """Return the cut of the others, the join of a standby, and the end of the group."""
        hung = run.members(action.group)
        stages = [_cut(hung, run)]
        if action.then == "replace":
            stages.append(run.stage(standby_for(action.group, run), Join()))
        if action.then != "wait":
            stages.append(run.stage(run.able(hung, "terminate"), Terminate()))
        return Stages(tuple(stage for stage in stages if stage.incarnations))

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Make the lighthouse stop waiting for the group."""
        group = cast(EvictGroup, plan.action).group
        hung = run.members(group)
        replicas = tuple(sorted(run.fleet.quorums.replicas(hung)))
        act = Evict(replicas=replicas, quorum_id=run.fleet.quorums.latest(hung))
        return run.steering.send(act, f"{group} hangs") if replicas else []

    def summary(self, action: EvictGroup, plan: Plan, run: Run) -> str:
        """Return what happened to the group."""
        then = {"wait": "may rejoin", "restart": "was terminated", "replace": "was replaced"}
        return f"{action.group} was evicted from the quorum and {then[action.then]}"


def _cut(hung: Iterable[int], run: Run) -> Stage:
    """Return the cut of all other members of the hung group's quorum."""
    quorum_id = run.fleet.quorums.latest(hung)
    hung_groups = {run.fleet.hello[row].group for row in hung}
    others = [
        row
        for row in run.able(run.rows_in("training"), "cut")
        if run.fleet.hello[row].group not in hung_groups
        and run.fleet.quorums.latest([row]) == quorum_id >= 0
    ]
    return run.stage(others, Cut(quorum_id=max(quorum_id, 0)))


KIND = EvictKind()
