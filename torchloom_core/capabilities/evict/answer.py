"""An eviction on the fleet model, where no group hangs: the group leaves as in a drain."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import Cut, Join, Terminate


def cut(model: FleetModel, group: str) -> str:
    """Do nothing, as no group waits for the evicted one."""
    return ""


ANSWER = FleetAnswer(
    of_group={Cut: cut, Join: FleetModel.join, Terminate: FleetModel.drain},
)
