"""A preview on the fleet model: refused, a modelled standby trains nothing."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Rehearse


def refuse(model: FleetModel, operation: Rehearse) -> str:
    """Say why there is none."""
    return "a standby that is only modelled trains nothing"


ANSWER = FleetAnswer(of_run={Rehearse: refuse})
