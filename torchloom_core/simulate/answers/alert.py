"""An alert on the fleet model: nobody there reads it."""

from torchloom_core.simulate.answers.answer import FleetAnswer

ANSWER = FleetAnswer()
