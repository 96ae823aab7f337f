"""A drain on the fleet model: the group leaves in order, and its nodes are inspected."""

from torchloom_core.lab.simulate.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.wire.operations import Drain

ANSWER = FleetAnswer(of_group={Drain: FleetModel.drain})
