"""Admit: a standby group joins the run for good, in addition to the present groups."""

from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.live.capability import ActionKind, Plan, Run, Stages
from torchloom_core.wire.operations import Drain, Join


class AdmitKind(ActionKind[AdmitGroup]):
    """Done once all workers of the group train."""

    message = AdmitGroup
    operations = (Join,)

    def obstacle(self, action: AdmitGroup, run: Run) -> str:
        """Refuse a group that is no standby, is reserved, unreachable or on a cordoned node."""
        fleet, group = run.fleet, action.group
        rows = run.standby_members(group)
        hellos = [fleet.hello[row] for row in rows]
        if not rows:
            trains = group in run.training_groups()
            return f"group {group} is already training" if trains else run.not_training(group)
        taken = run.plans.reserved() | run.commands.workers_with(Drain)
        if any(hello.worker in taken for hello in hellos):
            return f"standby {group} is already joining or draining"
        if run.reachable(rows) != rows:
            return f"standby {group} is unreachable"
        cordoned = sorted(fleet.cordons.nodes.intersection(hello.node for hello in hellos))
        return f"standby {group} is on {cordoned[0]}, which is cordoned" if cordoned else ""

    def stages(self, action: AdmitGroup, run: Run) -> Stages:
        """Return the join of the whole group."""
        stage = run.stage(run.standby_members(action.group), Join())
        return Stages((stage,), tuple(worker for worker, _ in stage.incarnations))

    def summary(self, action: AdmitGroup, plan: Plan, run: Run) -> str:
        """Return which group joined."""
        return f"{action.group} joined"


KIND = AdmitKind()
