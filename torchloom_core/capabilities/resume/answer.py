"""A resume on the fleet model: the paused run continues."""

from torchloom_core.lab.capability import FleetAnswer
from torchloom_core.wire.operations import Load, Resume, Thaw

ANSWER = FleetAnswer(
    of_run={Resume: lambda model, _: model.resume(), Thaw: lambda *_: "", Load: lambda *_: ""}
)
