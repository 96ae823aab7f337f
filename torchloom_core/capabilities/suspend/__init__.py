"""Suspend: every training worker, of one role or of all, gives up its machine until resumed."""

import msgspec

from torchloom_core.wire.capability import Action, RoleName
from torchloom_core.wire.operations import Depth


class SuspendRun(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="suspend",
):
    """Suspend every training worker at one step, of one role if ``role`` is given.

    ``depth``: ``frozen`` stops the processes, ``parked`` keeps them and moves their state to the
    memory of nodes, ``stored`` saves a checkpoint and ends them.

    Examples
    --------
    >>> from torchloom_core.capabilities.suspend import SuspendRun
    >>> SuspendRun(depth="stored", role="rollout")
    SuspendRun(depth='stored', role='rollout')
    """

    depth: Depth = "frozen"
    role: RoleName = ""
