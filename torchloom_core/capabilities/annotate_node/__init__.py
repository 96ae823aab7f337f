"""Annotate a node: attach a text to it in the record; the run is not changed."""

import msgspec

from torchloom_core.wire.capability import Action, Target, Text


class AnnotateNode(
    msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="annotate_node"
):
    """Attach ``text`` to ``node``, for people and for effectors such as a ticket system.

    Examples
    --------
    >>> from torchloom_core.capabilities.annotate_node import AnnotateNode
    >>> AnnotateNode(node="n7", text="fan replaced")
    AnnotateNode(node='n7', text='fan replaced')
    """

    node: Target
    text: Text
