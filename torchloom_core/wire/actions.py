"""The actions on a run, as they are proposed, granted and recorded.

A capability is a package of its own: see docs/actions.md.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from torchloom_core.wire.limits import KnobName, KnobValue, KnobValues, MetricName, RoleName, Target


class Action:
    """What is done to a run: the base of frozen structs with the tag field ``kind``.

    Each is in the package of its capability; :mod:`torchloom_core.wire.capabilities` finds it.

    Examples
    --------
    >>> from torchloom_core.plugin import Action, Migrate
    >>> isinstance(Migrate(group="g1"), Action)
    True
    """

    __slots__ = ()
    __struct_config__: ClassVar[msgspec.structs.StructConfig]


class ChangeKnob(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    repr_omit_defaults=True,
    tag_field="kind",
    tag="knob",
):
    """Set a knob of one worker, or of all workers that have it when ``worker`` is None.

    If workers of several roles have it, ``role`` names the one that is meant.

    Examples
    --------
    >>> from torchloom_core.plugin import ChangeKnob
    >>> ChangeKnob(knob="sync_every", value=64), ChangeKnob(knob="lr", value=0.1, role="trainer")
    (ChangeKnob(knob='sync_every', value=64), ChangeKnob(knob='lr', value=0.1, role='trainer'))
    """

    knob: KnobName
    value: KnobValue
    worker: Target | None = None
    role: RoleName | msgspec.UnsetType = msgspec.UNSET


class Guard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metric that is watched after a change, and its limit; above it the change is rolled back.

    Attributes
    ----------
    metric : str
        One that rises when a run gets worse: ``loss``, ``grad_norm``, ``step_time_s``.
    band : float
        How far the metric may rise, in multiples of its noise before the change.
    window_s : float
        How long it is measured before and watched after the change, seconds.

    Examples
    --------
    >>> from torchloom_core.plugin import Guard
    >>> Guard(metric="loss", window_s=60.0)
    Guard(metric='loss', band=3.0, window_s=60.0)
    """

    metric: MetricName
    band: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3.0
    window_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0


class ChangeKnobs(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="knobs",
):
    """Set run-fenced knobs on all ranks at one step, or none of them.

    Without a ``guard`` the one of the config is used. If ranks of several roles have them, ``role``
    names those that are meant.

    Examples
    --------
    >>> from torchloom_core.plugin import ChangeKnobs, Guard
    >>> change = ChangeKnobs(values={"lr": 0.1, "clip_norm": 1.0}, guard=Guard(metric="loss"))
    >>> change.values, change.guard.band
    ({'lr': 0.1, 'clip_norm': 1.0}, 3.0)
    """

    values: Annotated[KnobValues, msgspec.Meta(min_length=1)]
    guard: Guard | None = None
    role: RoleName = ""


def new_values(action: Action) -> KnobValues:
    """Return the knobs that an action sets, with their new values."""
    match action:
        case ChangeKnob(knob=knob, value=value):
            return {knob: value}
        case ChangeKnobs(values=values):
            return values
    return {}


def name_of(action: Action) -> str:
    """Return the action's kind as written in the config and the trajectory."""
    return str(action.__struct_config__.tag)


def plain_summary(action: Mapping[str, Any]) -> str:
    """Return kind and subject of a recorded action, whatever its kind.

    Examples
    --------
    >>> plain_summary({"kind": "drain", "group": "g1"})
    'drain group g1'
    >>> plain_summary({"kind": "landscape", "points": 0})
    'landscape end'
    """
    named = [f"{name} {action[name]}" for name in ("group", "node") if action.get(name)]
    ends = ["end"] if action.get("points") == 0 else []
    about = action.get("worker") or " ".join([*named, *ends])
    return f"{action.get('kind', '')} {about}".strip()
