"""What the package of a capability imports for its messages, see docs/actions.md.

Trainers load the package as well, so that it imports no other part of torchLoom.
"""

from torchloom_core.wire.actions import Action
from torchloom_core.wire.limits import (
    Count,
    Finite,
    KnobName,
    KnobValue,
    KnobValues,
    MetricName,
    Name,
    RoleName,
    ShortText,
    Target,
    Text,
)
from torchloom_core.wire.operations import Operation

__all__ = [
    "Action",
    "Count",
    "Finite",
    "KnobName",
    "KnobValue",
    "KnobValues",
    "MetricName",
    "Name",
    "Operation",
    "RoleName",
    "ShortText",
    "Target",
    "Text",
]
