"""A cordon on the fleet model: the node is used only if there is no other."""

from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.lab.simulate.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel


def avoid(model: FleetModel, action: CordonNode) -> None:
    """Cordon the node."""
    model.cordon(action.node)


ANSWER = FleetAnswer(done=avoid)
