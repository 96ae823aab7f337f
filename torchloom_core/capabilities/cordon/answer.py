"""A cordon on the fleet model: the node is used only if there is no other."""

from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.lab.capability import FleetAnswer, FleetModel


def avoid(model: FleetModel, action: CordonNode) -> None:
    """Cordon the node."""
    model.cordon(action.node)


ANSWER = FleetAnswer(done=avoid)
