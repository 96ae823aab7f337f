"""A dump on the fleet model: refused, a modelled worker has no stacks."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Dump


def refuse(model: FleetModel, operation: Dump) -> str:
    """Say why there is none."""
    return "nothing can be collected from a worker that is only modelled"


ANSWER = FleetAnswer(of_run={Dump: refuse})
