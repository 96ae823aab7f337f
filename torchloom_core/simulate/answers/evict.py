"""An eviction on the fleet model, where nothing hangs: its group leaves, as if it was drained."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import Cut, Join, Terminate


def cut(model: FleetModel, group: str) -> str:
    """Free a group that waits for nobody."""
    return ""


ANSWER = FleetAnswer(
    of_group={Cut: cut, Join: FleetModel.join, Terminate: FleetModel.drain},
)
