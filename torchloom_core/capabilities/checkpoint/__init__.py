"""Checkpoint: workers save at their next step boundary."""

import msgspec

from torchloom_core.wire.capability import Action, RoleName, Target


class SaveCheckpoint(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    repr_omit_defaults=True,
    tag_field="kind",
    tag="checkpoint",
):
    """Save a checkpoint now, in one group or, when ``group`` is None, in all, or all of a role.

    Examples
    --------
    >>> from torchloom_core.plugin import SaveCheckpoint
    >>> SaveCheckpoint(), SaveCheckpoint(group="g1")
    (SaveCheckpoint(), SaveCheckpoint(group='g1'))
    """

    group: Target | None = None
    role: RoleName | msgspec.UnsetType = msgspec.UNSET
