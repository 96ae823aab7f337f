"""A preview on the fleet model: refused, as simulated standbys do not train."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.messages import Rehearse


def refuse(model: FleetModel, operation: Rehearse) -> str:
    """Return the reason."""
    return "simulated standbys do not train"


ANSWER = FleetAnswer(of_run={Rehearse: refuse})
