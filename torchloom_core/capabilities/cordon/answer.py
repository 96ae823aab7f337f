"""A cordon on the fleet model: the node is used only if there is no other."""

from torchloom_core.lab.capability import FleetAnswer

ANSWER = FleetAnswer(done=lambda model, action: model.cordon(action.node))
