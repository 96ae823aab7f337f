"""A dump on the fleet model: refused, as simulated workers have no stacks."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.messages import Dump


def refuse(model: FleetModel, operation: Dump) -> str:
    """Return the reason."""
    return "simulated workers have no stacks to collect"


ANSWER = FleetAnswer(of_run={Dump: refuse})
