"""What a capability's module ``answer`` imports, see docs/actions.md."""

from torchloom_core.lab.simulate.answer import FleetAnswer
from torchloom_core.lab.simulate.model import FleetModel

__all__ = ["FleetAnswer", "FleetModel"]
