"""What can be done to a run, as it is proposed, granted and recorded.

What the core does of each kind is in :mod:`torchloom_core.kernel.actions`.
"""

from typing import Annotated

import msgspec

from torchloom_core.wire.limits import KnobName, Target, Text
from torchloom_core.wire.messages import KnobValue


class Migrate(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="migrate"):
    """A warm stand-by joins, then ``group`` drains: make before break."""

    group: Target


class DrainGroup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="drain"):
    """``group`` leaves at a step boundary, without a replacement."""

    group: Target


class ChangeKnob(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="knob"):
    """Set a knob of one worker, or of all workers that have it when ``worker`` is None."""

    knob: KnobName
    value: KnobValue
    worker: Target | None = None


class SaveCheckpoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """Save a checkpoint now, in one group or, when ``group`` is None, in all."""

    group: Target | None = None


class PauseRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """Pause every training worker at its next step boundary."""


class ResumeRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="resume"):
    """Let every paused worker go on."""


class CollectDump(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="dump"):
    """Collect stacks and the Flight Recorder's dump of one worker."""

    worker: Target


class Alert(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="alert"):
    """Tell people about ``worker``; nothing is changed."""

    worker: Target
    text: Text


class CordonNode(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="cordon"
):
    """Put nobody new on ``node``, for ``lasts_s`` or until it is uncordoned; who trains stays."""

    node: Target
    lasts_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None


class UncordonNode(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="uncordon"):
    """Let workers be put on ``node`` again."""

    node: Target


Action = (
    Migrate
    | DrainGroup
    | ChangeKnob
    | SaveCheckpoint
    | PauseRun
    | ResumeRun
    | CollectDump
    | Alert
    | CordonNode
    | UncordonNode
)


def name_of(action: Action) -> str:
    """Return the action's kind as written in the config and the trajectory."""
    return str(action.__struct_config__.tag)
