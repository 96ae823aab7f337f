"""A resume on the fleet model: the paused run continues."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Resume


def go_on(model: FleetModel, operation: Resume) -> str:
    """Resume the run."""
    return model.resume()


ANSWER = FleetAnswer(of_run={Resume: go_on})
