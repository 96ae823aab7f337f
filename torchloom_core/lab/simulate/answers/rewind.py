"""A rewind on the fleet model: refused, as its run has no loss."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.messages import FencedChange


def refuse(model: FleetModel, operation: FencedChange) -> str:
    """Return the reason."""
    return "the fleet model has no loss to rewind from"


ANSWER = FleetAnswer(of_run={FencedChange: refuse})
