"""What an answer of the fleet model to a kind of action is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom_core.simulate.model import FleetModel

OfGroup = Callable[[FleetModel, str], str]
"""``(model, group)`` does an operation for a replica group; returns "" or why it was not done."""

OfRun = Callable[[FleetModel, Any], str]
"""``(model, operation)`` does an operation for the whole run; returns "" or why it was not done."""


def nothing(model: FleetModel, action: Any) -> None:
    """Leave the fleet as it is."""


@dataclass(frozen=True)
class FleetAnswer:
    """How the fleet model answers one kind of action.

    Attributes
    ----------
    of_group, of_run : mapping of type to callable
        How each operation of its commands is done: once for the workers of a group, or of the run,
        that are told it for the same cause. Two kinds may do one operation each in its own way.
    done : callable
        ``(model, action)`` is called once the Weaver has done the action by itself.
    """

    of_group: Mapping[type, OfGroup] = field(default_factory=dict)
    of_run: Mapping[type, OfRun] = field(default_factory=dict)
    done: Callable[[FleetModel, Any], None] = nothing
