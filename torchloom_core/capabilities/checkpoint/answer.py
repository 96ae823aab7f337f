"""A checkpoint on the fleet model: of the whole run, now; training stops meanwhile."""

from torchloom_core.lab.capability import FleetAnswer
from torchloom_core.wire.operations import Checkpoint

ANSWER = FleetAnswer(of_run={Checkpoint: lambda model, _: model.save_checkpoint()})
