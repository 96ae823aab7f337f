"""Run-fenced knobs on the fleet model: its workers have none."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.messages import FencedChange


def refuse(model: FleetModel, operation: FencedChange) -> str:
    """Return the reason."""
    return "the fleet model has no run-fenced knob"


ANSWER = FleetAnswer(of_run={FencedChange: refuse})
