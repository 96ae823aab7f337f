"""Uncordon: workers may be started on a node again."""

import msgspec

from torchloom_core.wire.capability import Action, Target


class UncordonNode(
    msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="uncordon"
):
    """Allow workers on ``node`` again.

    Examples
    --------
    >>> from torchloom_core.plugin import UncordonNode
    >>> UncordonNode(node="n7")
    UncordonNode(node='n7')
    """

    node: Target
