"""A migration on the fleet model: a warm standby joins, then the group leaves."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Drain, Join

ANSWER = FleetAnswer(of_group={Join: FleetModel.join, Drain: FleetModel.drain})
