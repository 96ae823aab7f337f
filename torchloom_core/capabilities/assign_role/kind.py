"""Assign a role: a group leaves, and its nodes run another program of the run."""

from torchloom_core.capabilities.assign_role import AssignRole
from torchloom_core.live.capability import ActionKind, Plan, Run, Stages, listed, nearest
from torchloom_core.wire.operations import Drain, StartRole
from torchloom_core.wire.placement import NODE_AGENT, ROLES_LABEL


class AssignRoleKind(ActionKind[AssignRole]):
    """The drain of the group, then the order to its nodes' agents."""

    message = AssignRole
    operations = (Drain, StartRole)
    high_impact = True
    moves_group = True
    without_replacement = True

    def obstacle(self, action: AssignRole, run: Run) -> str:
        """Refuse a group whose nodes have no agent with the role, or that shares a node."""
        group, hello = action.group, run.fleet.hello
        if problem := run.not_training(group):
            return problem
        if run.fleet.role_of(group) == NODE_AGENT:
            return f"group {group} is a node agent: name the group that its program has"
        if run.fleet.role_of(group) == action.to:
            return f"group {group} has role {action.to} already"
        nodes = _nodes(group, run)
        shared = sorted(
            f"{one.node} also runs group {one.group}"
            for row, one in enumerate(hello)
            if one.node in nodes
            and one.role != NODE_AGENT
            and one.group != group
            and not run.fleet.is_over(row)
        )
        if shared:
            return shared[0]
        agents = {hello[row].node: row for row in _agents(nodes, run)}
        for node in sorted(nodes):
            if node not in agents:
                return f"{node} has no reachable node agent: need torchloom node-agent there"
            roles = str(hello[agents[node]].labels.get(ROLES_LABEL, "")).split()
            if action.to not in roles:
                near = nearest(action.to, roles)
                return f"{node}: need one of the roles {listed(roles)}, was {action.to}{near}"
        return ""

    def stages(self, action: AssignRole, run: Run) -> Stages:
        """Return the drain of the group's workers, and the start of the other program."""
        agents = _agents(_nodes(action.group, run), run)
        drain = run.stage(run.members(action.group), Drain())
        return Stages((drain, run.stage(agents, StartRole(role=action.to))))

    def summary(self, action: AssignRole, plan: Plan, run: Run) -> str:
        """Return which group left, and what follows."""
        return f"{action.group} drained, its nodes start role {action.to}"


def _nodes(group: str, run: Run) -> set[str]:
    return {run.fleet.hello[row].node for row in run.members(group)}


def _agents(nodes: set[str], run: Run) -> list[int]:
    """Return the rows of the nodes' agents."""
    hello, agents = run.fleet.hello, run.able(run.rows_in("training", "paused"), "start_role")
    return [row for row in run.reachable(agents) if hello[row].node in nodes]


KIND = AssignRoleKind()
