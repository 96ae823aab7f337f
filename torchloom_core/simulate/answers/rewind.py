"""A rewind on the fleet model: its run has no loss to go back from."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import FencedChange


def refuse(model: FleetModel, operation: FencedChange) -> str:
    """Say that there is nothing to go back from."""
    return "the fleet model has no loss to go back from"


ANSWER = FleetAnswer(of_run={FencedChange: refuse})
