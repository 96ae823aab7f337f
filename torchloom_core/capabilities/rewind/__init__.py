"""Rewind: all ranks return to the last checkpoint at one step, and skip batches from there."""

from typing import Annotated

import msgspec

from torchloom_core.wire.capability import Action, RoleName


class RewindRun(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="rewind",
):
    """All ranks return to the last checkpoint at one step, and ``skip`` batches from there.

    With ``role`` only the ranks of that role.

    Examples
    --------
    >>> from torchloom_core.plugin import RewindRun
    >>> RewindRun(skip=200)
    RewindRun(skip=200, role='')
    """

    skip: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    role: RoleName = ""
