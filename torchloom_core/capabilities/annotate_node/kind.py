"""Annotate a node: attach a text to it in the record; the run is not changed."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.capabilities.annotate_node import AnnotateNode
from torchloom_core.capabilities.cordon.kind import not_known
from torchloom_core.live.capability import ActionKind, Plan, Run


class AnnotateNodeKind(ActionKind[AnnotateNode]):
    """Done as soon as it is granted, and needs no net gain."""

    message = AnnotateNode
    changes_run = False
    skips_price_check = True

    def target(self, action: AnnotateNode) -> str:
        """Return the node's annotations, so that none is in conflict with a cordon."""
        return f"annotate_node:{action.node}"

    def obstacle(self, action: AnnotateNode, run: Run) -> str:
        """Refuse an unknown node."""
        return not_known(action.node, run)

    def summary(self, action: AnnotateNode, plan: Plan, run: Run) -> str:
        """Return the node and the text."""
        return f"{action.node}: {action.text}"

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``annotate_node n7: fan replaced``."""
        return f"annotate_node {action['node']}: {action['text']}"


KIND = AnnotateNodeKind()
