"""An eviction on the fleet model, where no group hangs: the group leaves as in a drain."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Cut, Join, Terminate

ANSWER = FleetAnswer(
    of_group={
        Cut: lambda model, group: "",  # no group waits for the evicted one
        Join: FleetModel.join,
        Terminate: FleetModel.drain,
    },
)
