"""A knob on the fleet model: it has one, the work between two durable checkpoints."""

from torchloom_core.simulate.answers.answer import FleetAnswer
from torchloom_core.simulate.model import FleetModel
from torchloom_core.wire.messages import KnobSpec, SetKnob

INTERVAL_KNOB = KnobSpec(
    name="checkpoint_interval_s",
    kind="float",
    low=1.0,
    unit="s",
    doc="work between two durable checkpoints",
)


def set_interval(model: FleetModel, operation: SetKnob) -> str:
    """Set the interval, unless it is that already."""
    seconds = float(operation.value)
    if seconds == model.checkpoint_interval_s:
        return ""
    return model.set_checkpoint_interval(seconds)


ANSWER = FleetAnswer(of_run={SetKnob: set_interval})
