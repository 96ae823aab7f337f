"""The kinds of action that are installed, each in the package of its capability."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from torchloom_core.floor.errors import PluginError
from torchloom_core.live.kernel.actions.guarded import GuardedKind
from torchloom_core.live.kernel.actions.kind import ActionKind
from torchloom_core.live.kernel.actions.uninstalled import UNINSTALLED
from torchloom_core.wire.actions import Action, name_of, plain_summary
from torchloom_core.wire.capabilities import OWN, Uninstalled, action_type, find_part, installed


@cache
def kind_named(name: str) -> ActionKind[Any]:
    """Return the kind of this name; one of another package cannot end the Weaver.

    Raises PluginError if it is not installed or unusable.
    """
    kind = unguarded_kind(name)
    return kind if installed()[name].startswith(OWN) else GuardedKind(name, kind)


@cache
def unguarded_kind(name: str) -> ActionKind[Any]:
    """Return the kind of this name as its package has it, for its tests."""
    module = find_part(name, "kind")
    kind = getattr(module, "KIND", None)
    if not isinstance(kind, ActionKind):
        raise PluginError(f"capability {name}: need KIND in its module kind, an ActionKind")
    if not hasattr(kind, "message"):
        raise PluginError(f"capability {name}: need message in KIND, its action")
    return kind


def check_installed() -> None:
    """Raise PluginError for an installed kind that cannot be used, before a run depends on it."""
    for name in installed():
        kind_named(name)
        action_type(name)


def kind_of(action: Action) -> ActionKind[Any]:
    """Return the kind of an action."""
    if isinstance(action, Uninstalled):
        return UNINSTALLED
    return kind_named(name_of(action))


def target_of(action: Action) -> str:
    """Return the target of an action; two actions with the same target are in conflict."""
    return kind_of(action).target(action)


def find_kind(name: str) -> ActionKind[Any] | None:
    """Return the kind of a recorded action; None if it is not installed here."""
    try:
        return kind_named(name)
    except PluginError:
        return None


def summary_of(action: Mapping[str, Any]) -> str:
    """Return a recorded action as ``migrate group g1`` or ``knob lr = 0.1 on g0-0``.

    An action of another version, or of a capability that is not installed, is returned as kind and
    subject.
    """
    kind = find_kind(str(action.get("kind")))
    try:
        return kind.describe(action) if kind else plain_summary(action)
    except Exception:  # noqa: BLE001 - a field is missing, or is of another type
        return plain_summary(action)
