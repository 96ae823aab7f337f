"""A knob on the fleet model: the only one is the durable checkpoint interval."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel
from torchloom_core.wire.operations import SetKnob


def set_interval(model: FleetModel, operation: SetKnob) -> str:
    """Set the interval if it differs."""
    seconds = float(operation.value)
    if seconds == model.checkpoint_interval_s:
        return ""
    return model.set_checkpoint_interval(seconds)


ANSWER = FleetAnswer(of_run={SetKnob: set_interval})
