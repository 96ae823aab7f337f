"""Cordon: no worker is started on a node, for a time or until it is uncordoned."""

from typing import Annotated

import msgspec

from torchloom_core.wire.capability import Action, Target, Text


class CordonNode(
    msgspec.Struct,
    Action,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="cordon",
):
    """Start no worker on ``node``, for ``lasts_s`` seconds or until it is uncordoned.

    ``reason`` is for people; it is in the outcome and in the record.

    Examples
    --------
    >>> from torchloom_core.plugin import CordonNode
    >>> CordonNode(node="n7", lasts_s=3600.0)
    CordonNode(node='n7', lasts_s=3600.0, reason='')
    """

    node: Target
    lasts_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None
    reason: Text = ""
