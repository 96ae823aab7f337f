"""An admission on the fleet model: a warm standby becomes a group of the run."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Join

ANSWER = FleetAnswer(of_group={Join: FleetModel.admit})
