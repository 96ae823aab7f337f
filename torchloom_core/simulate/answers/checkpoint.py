"""A checkpoint on the fleet model: saved now, all work stopped meanwhile."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Checkpoint


def save(model: FleetModel, operation: Checkpoint) -> str:
    """Save, whichever group was told: the model's checkpoints are the run's."""
    return model.save_checkpoint()


ANSWER = FleetAnswer(of_run={Checkpoint: save})
