"""Flush: workers wait until their asynchronous checkpoints are on disk."""

import msgspec
from torchloom_core.wire.capability import Action, Operation, Target


class FlushCheckpoints(
    msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="flush"
):
    """Wait for the checkpoints of one group or, when ``group`` is None, of all."""

    group: Target | None = None


class Flush(msgspec.Struct, Operation, frozen=True, kw_only=True, tag_field="verb", tag="flush"):
    """Wait at the next step boundary until no checkpoint is being written."""
