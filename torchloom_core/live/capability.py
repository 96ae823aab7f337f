"""What a capability's module ``kind`` imports, see docs/actions.md."""

from torchloom_core.floor.suggest import listed, nearest
from torchloom_core.live.fleet.cordons import Cordons
from torchloom_core.live.kernel.actions.fenced import cannot_agree, fenced_stages
from torchloom_core.live.kernel.actions.kind import ActionKind, Stages, Subject
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.wire.decisions import Notice, Output
from torchloom_core.wire.plans import Plan, Stage, landed_text, missed_text, workers_text

__all__ = [
    "ActionKind",
    "Cordons",
    "Notice",
    "Output",
    "Plan",
    "Run",
    "Stage",
    "Stages",
    "Subject",
    "cannot_agree",
    "fenced_stages",
    "landed_text",
    "listed",
    "missed_text",
    "nearest",
    "workers_text",
]
