"""A landscape on the fleet model: refused, a modelled standby has no weights."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Survey


def refuse(model: FleetModel, operation: Survey) -> str:
    """Say why there is none."""
    return "a standby that is only modelled has no weights to look around"


ANSWER = FleetAnswer(of_run={Survey: refuse})
