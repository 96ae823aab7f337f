"""An uncordon on the fleet model: the node is used as any other again."""

from torchloom_core.lab.capability import FleetAnswer

ANSWER = FleetAnswer(done=lambda model, action: model.uncordon(action.node))
