"""Example: one worker does an operation of its script, between two steps."""

import msgspec

from torchloom_core.wire.capability import Action, Operation, Target


class RequestExample(
    msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="example"
):
    """The action, which policies and people propose."""

    worker: Target


class Example(
    msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="example"
):
    """The operation, which the command to the worker has."""
