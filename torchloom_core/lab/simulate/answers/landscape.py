"""A loss landscape on the fleet model: refused, as simulated standbys have no weights."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.messages import Survey


def refuse(model: FleetModel, operation: Survey) -> str:
    """Return the reason."""
    return "simulated standbys have no weights"


ANSWER = FleetAnswer(of_run={Survey: refuse})
