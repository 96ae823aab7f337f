"""A pause on the fleet model: the run pauses after its current phase."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Pause


def wait(model: FleetModel, operation: Pause) -> str:
    """Pause the run."""
    return model.pause()


ANSWER = FleetAnswer(of_run={Pause: wait})
