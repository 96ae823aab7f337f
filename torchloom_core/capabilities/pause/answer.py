"""A pause on the fleet model: the run pauses after its current phase."""

from torchloom_core.lab.capability import FleetAnswer
from torchloom_core.wire.operations import Pause

ANSWER = FleetAnswer(of_run={Pause: lambda model, _: model.pause()})
