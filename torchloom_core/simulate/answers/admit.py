"""An admission on the fleet model: a warm standby is a group of the run from then on."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Join

ANSWER = FleetAnswer(of_group={Join: FleetModel.admit})
