"""Migrate: a warm standby joins, then the group drains; make before break."""

from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.live.capability import ActionKind, Plan, Run, Stages
from torchloom_core.wire.operations import Drain, Join


class MigrateKind(ActionKind[Migrate]):
    """The second stage waits until the standby trains."""

    message = Migrate
    operations = (Join, Drain)
    high_impact = True
    moves_group = True
    is_alarm = True

    def obstacle(self, action: Migrate, run: Run) -> str:
        """Refuse where no standby could take the group's place."""
        problem = run.not_training(action.group)
        return problem or ("" if standby_for(action.group, run) else _no_standby(action, run))

    def stages(self, action: Migrate, run: Run) -> Stages:
        """Return the join of the standby, and the drain of the group."""
        standby = standby_for(action.group, run)
        stages = (run.stage(standby, Join()), run.stage(run.members(action.group), Drain()))
        return Stages(stages, tuple(run.fleet.hello[row].worker for row in standby))

    def summary(self, action: Migrate, plan: Plan, run: Run) -> str:
        """Return which workers joined and which group left."""
        return f"{', '.join(plan.await_training)} joined, then {action.group} drained"


def standby_for(group: str, run: Run) -> list[int]:
    """Return the rows of the best standby group: of its role, as large, reachable, elsewhere.

    A group with a drain in flight does not count, even if the drain was withdrawn: it may have
    reached its worker.
    """
    fleet, hello = run.fleet, run.fleet.hello
    members = run.members(group)
    taken = run.plans.reserved() | run.commands.workers_with(Drain)
    barred = {hello[row].node for row in members} | fleet.cordons.nodes
    racks = {hello[row].rack for row in members} - {""}
    fit = [
        (any(hello[row].rack in racks for row in rows), name, rows)
        for name, rows in fleet.standing.groups("standby").items()
        if len(rows) == len(members)
        and fleet.role_of(name) == fleet.role_of(group)
        and not any(hello[row].node in barred or hello[row].worker in taken for row in rows)
        and run.reachable(rows) == rows
    ]
    return min(fit)[2] if fit else []


def _no_standby(action: Migrate, run: Run) -> str:
    hello = run.fleet.hello
    if not run.fleet.standing.groups("standby"):
        frameworks = {hello[row].framework for row in run.members(action.group)}
        if "torchft" in frameworks or any(one.state == "standby" for one in hello):
            return "no standby is left"
        return (
            "this run cannot migrate: need a standby and the framework torchft, was no standby and "
            f"{max(frameworks) or 'no framework'}"
        )
    need = "as many reachable workers, on other nodes that are not cordoned"
    return f"no standby fits {action.group}: need {need}"


KIND = MigrateKind()
