"""Dump: collect a worker's stacks and, where there is one, the Flight Recorder's dump."""

import msgspec

from torchloom_core.wire.capability import Action, Target


class CollectDump(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="dump"):
    """Collect stacks and the Flight Recorder's dump of one worker.

    Examples
    --------
    >>> from torchloom_core.plugin import CollectDump
    >>> CollectDump(worker="g1-0")
    CollectDump(worker='g1-0')
    """

    worker: Target
