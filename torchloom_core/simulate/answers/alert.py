"""An alert on the fleet model: it has no effect."""

from torchloom_core.simulate.answers.answer import FleetAnswer

ANSWER = FleetAnswer()
