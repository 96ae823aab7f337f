"""A probe on the fleet model: nothing is measured, no worker there has a link."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Probe


def refuse(model: FleetModel, operation: Probe) -> str:
    """Say why nothing is."""
    return "nothing is known of the links of workers that are only modelled"


ANSWER = FleetAnswer(of_run={Probe: refuse})
