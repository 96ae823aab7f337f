"""Evict: remove a hung replica group from the quorum, and end or replace it if requested."""

from typing import Literal

import msgspec

from torchloom_core.wire.capability import Action, Target


class EvictGroup(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="evict"):
    """Remove the hung ``group`` from the quorum, so that the other groups continue without it.

    ``then``: it may rejoin by itself (``wait``), its sidecars terminate it and its launcher
    restarts it (``restart``), or a standby joins and it is terminated (``replace``).

    Examples
    --------
    >>> from torchloom_core.plugin import EvictGroup
    >>> EvictGroup(group="g1")
    EvictGroup(group='g1', then='restart')
    """

    group: Target
    then: Literal["wait", "restart", "replace"] = "restart"
