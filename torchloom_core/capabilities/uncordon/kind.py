"""Uncordon: workers may be started on a node again."""

from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.live.capability import ActionKind, Cordons, Plan, Run, nearest


class UncordonKind(ActionKind[UncordonNode]):
    """Ends a cordon early."""

    message = UncordonNode

    def obstacle(self, action: UncordonNode, run: Run) -> str:
        """Refuse a node that is not cordoned."""
        cordoned = run.fleet.cordons.nodes
        if action.node in cordoned:
            return ""
        return f"node {action.node!r} is not cordoned{nearest(action.node, cordoned)}"

    def at_once(self, action: UncordonNode, cordons: Cordons, now_ns: int) -> None:
        """End the cordon."""
        cordons.lift(action.node)

    def summary(self, action: UncordonNode, plan: Plan, run: Run) -> str:
        """Return the node."""
        return f"{action.node} uncordoned"


KIND = UncordonKind()
