"""The part in a backtest: what the operation does to the fleet model."""

from torchloom_core.lab.capability import FleetAnswer, FleetModel

from . import Example


def example(model: FleetModel, operation: Example) -> str:
    """Do it for the whole run; return "" or why it was not done."""
    return model.save_checkpoint()


ANSWER = FleetAnswer(of_run={Example: example})
