"""An alert on the fleet model: it has no effect."""

from torchloom_core.lab.simulate.answers.answer import FleetAnswer

ANSWER = FleetAnswer()
