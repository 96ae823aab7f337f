"""Pause: every training worker waits at its next step boundary, or none does."""

import msgspec

from torchloom_core.wire.capability import Action


class PauseRun(msgspec.Struct, Action, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """Pause every training worker at its next step boundary.

    Examples
    --------
    >>> from torchloom_core.plugin import PauseRun
    >>> PauseRun()
    PauseRun()
    """
