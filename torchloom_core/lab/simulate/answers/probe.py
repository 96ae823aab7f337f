"""A probe on the fleet model: refused, as its workers have no links."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.messages import Probe


def refuse(model: FleetModel, operation: Probe) -> str:
    """Return the reason."""
    return "simulated workers have no links to probe"


ANSWER = FleetAnswer(of_run={Probe: refuse})
