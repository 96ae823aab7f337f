"""A checkpoint on the fleet model: saved now; training stops meanwhile."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Checkpoint


def save(model: FleetModel, operation: Checkpoint) -> str:
    """Save a checkpoint of the whole run, whichever group has the command."""
    return model.save_checkpoint()


ANSWER = FleetAnswer(of_run={Checkpoint: save})
