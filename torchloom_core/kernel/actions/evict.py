"""Evict: free those who wait for a replica group that hangs, and end it where that is wanted."""

from collections.abc import Iterable
from typing import cast

from torchloom_core.kernel.actions.kind import ActionKind, Stages
from torchloom_core.kernel.actions.migrate import standby_for
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import EvictGroup
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Cut, Join, Terminate
from torchloom_core.wire.plans import Plan, Stage
from torchloom_core.wire.steering import Evict


class EvictKind(ActionKind[EvictGroup]):
    """The others' connections of that very quorum are cut, and the lighthouse stops waiting."""

    message = EvictGroup
    operations = (Cut, Join, Terminate)
    high_impact = True
    moves_group = True
    is_alarm = True

    def takes(self, action: EvictGroup) -> frozenset[str]:
        """Return the group, unless a standby takes its place."""
        return frozenset() if action.then == "replace" else self.moves(action)

    def obstacle(self, action: EvictGroup, run: Run) -> str:
        """Refuse whom nobody waits for, and to replace it by nobody."""
        if run.training_groups() == {action.group}:
            return f"no other group trains: nobody waits for {action.group}"
        fits = action.then != "replace" or standby_for(action.group, run)
        if action.then == "wait" and not run.fleet.quorums.replicas(run.members(action.group)):
            return f"nobody has said in which quorum {action.group} is"
        return run.not_training(action.group) or ("" if fits else f"nobody fits {action.group}")

    def stages(self, action: EvictGroup, run: Run) -> Stages:
        """Return the cut of the others, then who comes, then the end of the group."""
        hung = run.members(action.group)
        stages = [_cut(hung, run)]
        if action.then == "replace":
            stages.append(run.stage(standby_for(action.group, run), Join()))
        if action.then != "wait":
            stages.append(run.stage(run.able(hung, "terminate"), Terminate()))
        return Stages(tuple(stage for stage in stages if stage.incarnations))

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Have the lighthouse stop waiting for it."""
        group = cast(EvictGroup, plan.action).group
        hung = run.members(group)
        replicas = tuple(sorted(run.fleet.quorums.replicas(hung)))
        act = Evict(replicas=replicas, quorum_id=run.fleet.quorums.latest(hung))
        return run.steering.send(act, f"{group} hangs") if replicas else []

    def summary(self, action: EvictGroup, plan: Plan, run: Run) -> str:
        """Return what became of the group."""
        then = {"wait": "may come back", "restart": "was ended", "replace": "was replaced"}
        return f"the others were freed of {action.group}, which {then[action.then]}"


def _cut(hung: Iterable[int], run: Run) -> Stage:
    """Return the cut of whoever is in the quorum of those that hang."""
    quorum_id = run.fleet.quorums.latest(hung)
    away = {run.fleet.hello[row].group for row in hung}
    others = [
        row
        for row in run.able(run.rows_in("training"), "cut")
        if run.fleet.hello[row].group not in away
        and run.fleet.quorums.latest([row]) == quorum_id >= 0
    ]
    return run.stage(others, Cut(quorum_id=max(quorum_id, 0)))
