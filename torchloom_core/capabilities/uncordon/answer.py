"""An uncordon on the fleet model: the node is used as any other again."""

from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.lab.capability import FleetAnswer, FleetModel


def use_again(model: FleetModel, action: UncordonNode) -> None:
    """Uncordon the node."""
    model.uncordon(action.node)


ANSWER = FleetAnswer(done=use_again)
