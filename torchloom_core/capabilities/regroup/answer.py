"""A change of assignment on the fleet model, whose workers are not split over: nothing changes."""

from torchloom_core.lab.capability import FleetAnswer

ANSWER = FleetAnswer()
