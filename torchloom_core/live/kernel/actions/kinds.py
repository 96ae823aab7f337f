"""All kinds of action by name."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.live.kernel.actions.admit import AdmitKind
from torchloom_core.live.kernel.actions.alert import AlertKind
from torchloom_core.live.kernel.actions.checkpoint import CheckpointKind
from torchloom_core.live.kernel.actions.cordon import CordonKind
from torchloom_core.live.kernel.actions.drain import DrainKind
from torchloom_core.live.kernel.actions.dump import DumpKind
from torchloom_core.live.kernel.actions.evict import EvictKind
from torchloom_core.live.kernel.actions.kind import ActionKind
from torchloom_core.live.kernel.actions.knob import KnobKind
from torchloom_core.live.kernel.actions.knobs import KnobsKind
from torchloom_core.live.kernel.actions.landscape import LandscapeKind
from torchloom_core.live.kernel.actions.migrate import MigrateKind
from torchloom_core.live.kernel.actions.pause import PauseKind
from torchloom_core.live.kernel.actions.preview import PreviewKind
from torchloom_core.live.kernel.actions.probe import ProbeKind
from torchloom_core.live.kernel.actions.resume import ResumeKind
from torchloom_core.live.kernel.actions.rewind import RewindKind
from torchloom_core.live.kernel.actions.uncordon import UncordonKind
from torchloom_core.wire.actions import Action, name_of, plain_summary

KINDS: Mapping[str, ActionKind[Any]] = {
    str(kind.message.__struct_config__.tag): kind
    for kind in (
        MigrateKind(),
        AdmitKind(),
        DrainKind(),
        EvictKind(),
        KnobKind(),
        KnobsKind(),
        CheckpointKind(),
        PauseKind(),
        ResumeKind(),
        RewindKind(),
        DumpKind(),
        ProbeKind(),
        LandscapeKind(),
        PreviewKind(),
        AlertKind(),
        CordonKind(),
        UncordonKind(),
    )
}

HIGH_IMPACT = frozenset(name for name, kind in KINDS.items() if kind.high_impact)
"""Names of the kinds that the circuit breaker counts."""


def kind_of(action: Action) -> ActionKind[Any]:
    """Return the kind of an action."""
    return KINDS[name_of(action)]


def target_of(action: Action) -> str:
    """Return the target of an action; two actions with the same target are in conflict."""
    return kind_of(action).target(action)


def summary_of(action: Mapping[str, Any]) -> str:
    """Return a recorded action as ``migrate group g1`` or ``knob lr = 0.1 on g0-0``.

    An action of another version that cannot be described is returned as kind and subject.
    """
    kind = KINDS.get(str(action.get("kind")))
    try:
        return kind.describe(action) if kind else plain_summary(action)
    except (KeyError, TypeError, ValueError):  # a field is missing, or is of another type
        return plain_summary(action)
