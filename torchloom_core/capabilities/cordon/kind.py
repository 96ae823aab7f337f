"""Cordon: no worker is started on a node, for a time or until it is uncordoned."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.live.capability import ActionKind, Cordons, Plan, Run, nearest


class CordonKind(ActionKind[CordonNode]):
    """Of two cordons of a node the longer one counts; present workers stay."""

    message = CordonNode
    is_alarm = True

    def cordons(self, action: CordonNode) -> frozenset[str]:
        """Return the node."""
        return frozenset({action.node})

    def obstacle(self, action: CordonNode, run: Run) -> str:
        """Refuse to shorten a cordon: a policy must not undo a person's."""
        node, cordons = action.node, run.fleet.cordons
        if cordons.lasts(node, action.lasts_s, run.now_ns):
            end_ns = cordons.until_ns.get(node)
            if end_ns is None:
                return f"node {node} is already cordoned, without an end"
            end = moment_text(end_ns // SECOND_NS * SECOND_NS)
            return f"node {node} is already cordoned, until {end}"
        return not_known(node, run)

    def at_once(self, action: CordonNode, cordons: Cordons, now_ns: int) -> None:
        """Cordon the node."""
        cordons.add(action.node, action.lasts_s, now_ns)

    def summary(self, action: CordonNode, plan: Plan, run: Run) -> str:
        """Return the node, for how long it is cordoned, and why."""
        return f"{action.node} cordoned{_for(action.lasts_s)}{_because(action.reason)}"

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``cordon node n7 for 3600 s``."""
        lasts, reason = _for(action.get("lasts_s")), _because(action.get("reason", ""))
        return f"cordon node {action['node']}{lasts}{reason}"


def not_known(node: str, run: Run) -> str:
    """Return that the run has never had this node, "" if it has."""
    nodes = run.fleet.nodes()
    need = "need a node that has had a worker or a reported fault"
    return "" if node in nodes else f"{need}, was {node!r}{nearest(node, nodes)}"


def _for(lasts_s: float | None) -> str:
    return f" for {lasts_s:.0f} s" if lasts_s else ""


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


KIND = CordonKind()
