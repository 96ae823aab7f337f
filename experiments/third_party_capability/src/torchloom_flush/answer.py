"""Flush on the fleet model, whose checkpoints are never asynchronous: it saves one now."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel

from torchloom_flush import Flush


def flush(model: FleetModel, operation: Flush) -> str:
    """Save a checkpoint; training stops meanwhile."""
    return model.save_checkpoint()


ANSWER = FleetAnswer(of_run={Flush: flush})
