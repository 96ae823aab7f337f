"""A drain on the fleet model: the group leaves in order, and its nodes are inspected."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Drain

ANSWER = FleetAnswer(of_group={Drain: FleetModel.drain})
