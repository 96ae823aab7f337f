"""Migrate: a warm standby joins, then the group drains; make before break."""

import msgspec

from torchloom_core.wire.capability import Action, Target


class Migrate(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="migrate"):
    """A warm standby joins, then ``group`` drains: make before break.

    Examples
    --------
    >>> from torchloom_core.plugin import Migrate, Proposal
    >>> Proposal(action=Migrate(group="g1"), reason="g1-0 runs hot", gain_gpu_s=900.0).net_gpu_s
    900.0
    """

    group: Target
