"""Drain: groups leave at a step boundary, without a replacement."""

from typing import Annotated

import msgspec

from torchloom_core.wire.capability import Action, Target


class DrainGroup(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="drain",
):
    """``group`` leaves at a step boundary without a replacement; ``also`` at the same step.

    Examples
    --------
    >>> from torchloom_core.plugin import DrainGroup
    >>> DrainGroup(group="g1").groups, DrainGroup(group="g1", also=("g2",)).groups
    (('g1',), ('g1', 'g2'))
    """

    group: Target
    also: Annotated[tuple[Target, ...], msgspec.Meta(max_length=1024)] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """All groups that leave."""
        return tuple(dict.fromkeys((self.group, *self.also)))
